"""The module in Lightning's hands: what runs when, and that nothing of the backbone ever moves."""

import copy

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import cifnet_pl.backbones
import cifnet_pl.learning.callbacks
from cifnet_pl import CalibrationBuffer
from cifnet_pl.backbones import Preprocessing
from cifnet_pl.heads import CIFNetHead, RidgeHead
from cifnet_pl.testing import assert_same_state
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from tests.command_line import fit
from tests.lightning_runs import digits, fitted, module, trainer


class Watcher(Callback):
    """The backbone never is in training mode, and no parameter learns."""

    count = 0

    def on_train_batch_end(self, trainer, module, *_):
        self.count += 1
        assert not any(part.training for part in module.backbone.modules())
        assert not any(p.requires_grad for p in module.parameters())

    on_validation_batch_end = on_train_batch_end


def test_callbacks_of_a_user_come_last(tmp_path, monkeypatch):
    monkeypatch.setattr(LastSeen, "rows", [], raising=False)
    last_seen = ["--trainer.callbacks", "tests.learning.test_cifnet_module.LastSeen"]
    assert fit(tmp_path, "--data.max_tasks", "1", *last_seen) == 0
    assert LastSeen.rows == [1]


class LastSeen(Callback):
    """A user's callback: how many rows the run's record has when it is called."""

    rows: list[int]

    def on_validation_end(self, trainer, pl_module):
        self.rows.append(len(pl_module.record.rows))


def test_model_checkpoint_monitors_the_accuracy(tmp_path):
    every = {"monitor": "A_k", "mode": "max", "save_top_k": -1}
    best = ModelCheckpoint(tmp_path, "{A_k:.2f}", **every)
    learner = module()
    run = trainer(tmp_path, best)
    run.fit(learner, datamodule=digits(max_tasks=3))
    names = {path.stem.split("-")[0] for path in tmp_path.glob("A_k=*.ckpt")}
    assert names == {f"A_k={row.A_k:.2f}" for row in learner.record.rows}
    accuracies = [row.A_k for row in learner.record.rows]
    assert float(best.best_model_score) == pytest.approx(max(accuracies))
    assert float(run.callback_metrics["A_k"]) == pytest.approx(accuracies[-1])


def test_the_backbone_never_moves_and_is_not_in_the_checkpoint(tmp_path, monkeypatch):
    """Its batch statistics and dropout would show at once if it were ever in training mode."""
    first = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5)
    network = nn.Sequential(*first, nn.AdaptiveAvgPool2d(2), nn.Flatten())
    built = network, 32, Preprocessing(8, mean=(0.5,) * 3, std=(0.5,) * 3)
    known = cifnet_pl.backbones.BACKBONES
    monkeypatch.setitem(known, "convolutional", lambda *_: built)
    before = copy.deepcopy(network.state_dict())
    learner = module(backbone="convolutional", engine="torch")
    watcher = Watcher()
    digest = learner.backbone.sha256
    learner.train()
    learner.backbone.train(True)
    assert not any(split.training for split in learner.backbone.modules())
    run = trainer(tmp_path, watcher)
    run.fit(learner, datamodule=digits(max_tasks=2))
    assert watcher.count
    assert_same_state(network, before)
    shape = learner.backbone.preprocessing
    again = cifnet_pl.backbones.Backbone("", network, 32, shape)
    assert digest == again.sha256
    path = tmp_path / "it.ckpt"
    run.save_checkpoint(path)
    content = torch.load(path, weights_only=True)
    assert not [key for key in content["state_dict"] if "backbone" in key]
    assert content["cifnet"]["settings"]["backbone"] == learner.backbone.sha256
    with torch.no_grad():
        network[0].weight[0, 0, 0, 0] += 1e-3
    other = module(backbone="convolutional", engine="torch")
    with pytest.raises(CheckpointError, match="made with backbone ="):
        trainer(tmp_path).validate(other, datamodule=digits(), ckpt_path=path)


def test_defaults_of_the_trainer_are_put_right(tmp_path, caplog):
    learner = module(head=RidgeHead, buffer=None)
    data = digits(max_tasks=2)
    wrong = {"num_sanity_val_steps": 2, "check_val_every_n_epoch": 1}
    run = trainer(tmp_path, max_epochs=1, **wrong)
    run.fit(learner, datamodule=data)
    assert "max_epochs is 1, but" in caplog.text
    assert len(learner.learned_tasks) == 2
    learned = learner.evaluation
    run.validate(learner, datamodule=data, verbose=False)
    assert learner.evaluation.task_accuracy == learned.task_accuracy


def test_a_second_fit_learns_what_is_left(tmp_path):
    whole = fitted(tmp_path, digits(max_tasks=3))
    learner = fitted(tmp_path, digits(max_tasks=2))
    run = trainer(tmp_path)
    run.fit(learner, datamodule=digits(max_tasks=3))
    assert run.global_step == run.current_epoch == 3
    assert learner.class_names == whole.class_names
    assert_same_state(learner, whole.state_dict())
    assert [row.task for row in learner.record.rows] == [1, 2, 3]


def test_evaluation_before_any_task(tmp_path):
    with pytest.raises(UsageError, match="nothing is learned yet"):
        trainer(tmp_path).validate(module(), datamodule=digits(), verbose=False)


def test_a_run_is_this_loop(tmp_path):
    """The paper's Algorithm 1 in plain torch, with the same images."""
    data = digits(class_order=3, batch_size=50, max_tasks=3)
    learner = fitted(tmp_path, data)
    head = CIFNetHead(192)
    buffer = CalibrationBuffer(300)
    images = data.source.train
    for task, names in enumerate(learner.learned_tasks):
        positions = [data.source.class_names.index(name) for name in names]
        labels = {position: 2 * task + i for i, position in enumerate(positions)}
        rows = np.concatenate([images.rows_of[position] for position in labels])
        pixels = np.stack([images.image(row).square(8) for row in rows])
        z = learner.backbone(torch.from_numpy(pixels).permute(0, 3, 1, 2))
        y = torch.tensor([labels[int(images.labels[row])] for row in rows])
        head.begin_task(list(labels.values()))
        head.observe(z, y)
        buffer.add(z, y, torch.tensor(images.hashes(rows)))
        past, y = buffer.items()
        if task:
            counts = head.class_counts()
            most = max(counts[label] for label in labels.values())
            head.observe_past(past, y, buffer.oversampling(most))
        buffer.commit()
        head.solve()
    for ours, theirs in ((head, learner.head), (buffer, learner.buffer)):
        assert_same_state(ours, theirs.state_dict())


def test_a_head_is_taken_as_it_is_if_it_fits(tmp_path):
    """As people write it, beside what makes one."""
    data = digits(max_tasks=1)
    learner = fitted(tmp_path, data, head=RidgeHead(192), buffer=None)
    assert learner.model.head.classes
    with pytest.raises(UsageError, match=r"192.*head=RidgeHead\(192\)"):
        module(head=RidgeHead(64))
    with pytest.raises(UsageError, match="knows 2 classes"):
        module(head=learner.head)
