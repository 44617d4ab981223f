"""The regime that trained methods share: batch statistics, exemplars, rates, what is refused."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.nn import functional

from cifnet_pl.__main__ import main
from cifnet_pl.iterative import (
    CREATEModule,
    DERModule,
    FinetuneModule,
    FOSTERModule,
    ICaRLModule,
    MEMOModule,
    PODNetModule,
    ReplayModule,
    TagFexModule,
    WAModule,
)
from cifnet_pl.iterative import trainer as trainer_module
from cifnet_pl.iterative.descent import Descent
from cifnet_pl.iterative.exemplars import quota
from cifnet_pl.model.store import load
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError
from tests.command_line import DATA, assert_same_model, make_images, summary_of
from tests.iterative.suite import SIDE, assert_same_weights, data, learner, run, save_at
from tests.killing import Killed, at_call, die
from tests.lightning_runs import trainer

# ---------------------------------------------------------------------- learning


def test_fixed_statistics_stay_and_rates_are_of_the_first_task_or_later_ones(
    tmp_path, watch
):
    phases = watch(Descent, "__init__", lambda self, module, parts, phase: phase)
    before = learner(FinetuneModule).state_dict()
    pairs = {"learning_rate": [0.01, 0.005], "weight_decay": [0.5e-3, 0.2e-3]}
    options = {"epochs": [2, 1], "batch_statistics": "fixed", **pairs}
    made, _ = run(FinetuneModule, tmp_path, **options)
    seen = [(phase.learning_rate, phase.weight_decay) for phase in phases]
    assert seen == [(0.01, 0.5e-3), (0.005, 0.2e-3)]
    assert made.epochs == 1
    after = made.state_dict()
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    assert not any("running" in key for key in moved)
    assert {"network.conv1.weight", "network.bn1.weight"} <= moved


def test_exemplars_are_training_images_and_fewer_as_classes_come(tmp_path):
    made, _ = run(ReplayModule, tmp_path, epochs=1)
    kept = made.exemplars
    assert torch.bincount(kept.label).tolist() == [15] * 4
    train = data().source.train
    rows = train.rows_of[int(made.class_names[0])]
    squares = np.stack([train.image(row).square(SIDE) for row in rows])
    for image in kept.image[kept.label == 0].permute(0, 2, 3, 1).numpy():
        assert (squares == image).all(axis=(1, 2, 3)).any()


def test_number_of_exemplars_of_each_class():
    assert quota(60, None, 7) == 8
    assert quota(60, 7, 100) == 7
    with pytest.raises(UsageError, match=r"3 exemplars cannot .* --model\.exemplars 4"):
        quota(3, None, 4)


def test_icarls_binary_loss_is_the_papers_and_so_is_its_prediction(tmp_path):
    options = {"loss": "binary", "epochs": 6, "exemplars_per_class": 7}
    made, record = run(ICaRLModule, tmp_path, **options)
    assert record.trajectory[-1] > 80
    kept = made.exemplars
    assert torch.bincount(kept.label).tolist() == [7] * 4
    z = functional.normalize(made.embed(kept.image), dim=1).double()
    means = torch.stack([z[kept.label == label].mean(dim=0) for label in range(4)])
    distance = torch.cdist(z, functional.normalize(means, dim=1))
    expected = (-distance.square()).softmax(dim=1)
    probabilities = made(kept.image)
    assert torch.equal(probabilities.argmax(dim=1), distance.argmin(dim=1))
    assert torch.allclose(probabilities, expected, atol=1e-5)


def test_memory_share(tmp_path, watch):
    """RMM: exemplars and the task's images share one memory."""
    plans = watch(trainer_module, "plan_steps", lambda rows, old, *_: (len(rows), old))
    run(FOSTERModule, tmp_path, epochs=1, exemplars=20, memory_rate=0.1)
    new = len(data().plan.rows[1])
    learned, exemplars = next(plan for plan in plans if plan[1])
    assert exemplars == 2 * ((20 + round(0.1 * new)) // 2)
    assert learned + exemplars == 20 + new


@pytest.mark.parametrize(
    ("method", "tasks", "millions"),
    [
        (DERModule, 20, 9.27),
        (MEMOModule, 20, 7.14),
        (TagFexModule, 10, 7.42),
        (FOSTERModule, 10, 0.46),
    ],
)
def test_parameters_are_the_papers_on_cifar_100(method, tasks, millions):
    made = method(backbone="random:resnet32_cifar")
    made.rebuild([100 // tasks] * tasks)
    count = sum(p.numel() for p in made.counted_module().parameters())
    assert round(count / 1e6, 2) == millions


# ---------------------------------------------------------------------- the command line


def test_after_a_kill_inside_a_task(tmp_path, monkeypatch):
    words = "--data.max_tasks 2 --data.batch_size 32 --model.backbone small"
    words += " --model cifnet_pl.iterative.DERModule --model.epochs 1"
    words += " --model.preset mine --seed_everything 5"
    fit = ["fit", *DATA, *words.split(), "--logs"]
    assert main([*fit, str(tmp_path / "whole")]) == 0
    whole = tmp_path / "whole" / "default" / "version_0"
    config = yaml.safe_load((whole / "config.yaml").read_text())
    assert config["seed_everything"] == 5
    often = ["--checkpoint.every_minutes", "0"]
    with monkeypatch.context() as patched:
        patched.setattr(DERModule, "loss", at_call(14, DERModule.loss, die))
        with pytest.raises(Killed):
            main([*fit, str(tmp_path), *often])
    again = tmp_path / "default" / "version_0"
    stopped = torch.load(again / "checkpoints" / "last.ckpt", weights_only=True)
    assert stopped["cifnet"]["under_way"]
    assert stopped["position"]["step"] > 0
    with monkeypatch.context() as patched:
        patched.setattr("cifnet_pl.iterative.trainer.learned_model", die)
        with pytest.raises(Killed):
            main([*fit, str(tmp_path), *often, "--ckpt_path", "last"])
    assert main([*fit, str(tmp_path), *often, "--ckpt_path", "last"]) == 0
    assert_same_model(again, whole)
    summary = summary_of(again)
    uninterrupted = summary_of(whole)
    assert summary["A_k"] == uninterrupted["A_k"]
    assert load(again).counts == load(whole).counts
    small = sum(p.numel() for p in learner(FinetuneModule).network.parameters())
    expected = {"head": "DERModule", "preset": "mine", "epochs": 1}
    expected |= {"network_params": small, "backbone_params": 2 * small}
    assert expected.items() <= summary.items()


def test_fine_tuning_goes_on_after_its_last_step_and_with_more_classes(
    tmp_path, monkeypatch
):
    images = make_images(tmp_path / "images", ["b", "c", "d", "e"], 12)
    words = "--model cifnet_pl.iterative.FinetuneModule --model.backbone small"
    words += " --model.epochs 1 --data.image_size 8 --data.classes_per_task 2"
    words += " --data.batch_size 8 --checkpoint.every_minutes 0 --energy.enabled false"
    fit = ["fit", *words.split(), "--data.root", str(images), "--logs"]
    assert main([*fit, str(tmp_path / "whole")]) == 0
    fit += [str(tmp_path), "--ckpt_path", "last"]
    end = FinetuneModule.finish_task
    with monkeypatch.context() as patched:
        patched.setattr(FinetuneModule, "finish_task", at_call(2, end, die))
        with pytest.raises(Killed):
            main(fit)
    assert main(fit) == 0
    run = tmp_path / "default" / "version_0"
    assert_same_model(run, tmp_path / "whole" / "default" / "version_0")
    make_images(images, ["a", "f"], 12)
    assert main(fit) == 0
    assert len(load(run).class_names) == 6


# ---------------------------------------------------------------------- bad input


def steps(milestones: list[float], decay: float = 0.1) -> dict[str, object]:
    return {"schedule": "step", "milestones": milestones, "decay": decay}


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        (FinetuneModule, {"epochs": 0}, "epochs.0 is '0'"),
        (FinetuneModule, {"learning_rate": float("inf")}, "learning_rate.0 is 'inf'"),
        (FinetuneModule, {"learning_rate": [0.1] * 3}, "learning_rate is .*at most 2"),
        (FinetuneModule, {"momentum": 1.0}, "momentum is '1.0'"),
        (FinetuneModule, steps([0.6, 0.3]), "expected rising shares"),
        (FinetuneModule, steps([0.5], 1.5), "decay is '1.5'"),
        (FinetuneModule, {"brightness": 1.5}, "brightness is '1.5'"),
        (ReplayModule, {"exemplars": 0}, "exemplars is 0"),
        (PODNetModule, {"proxies": 0}, "proxies is 0"),
        (PODNetModule, {"tuning": -1.0}, "tuning is -1, expected at least 0"),
        (CREATEModule, {"tuning_rate": 0.0}, "tuning_rate is 0"),
        (FOSTERModule, {"boosting_beta": 1.0}, "boosting_beta is 1"),
        (FOSTERModule, {"memory_rate": 1.5}, "memory_rate is 1.5"),
        (FOSTERModule, {"memory_rate": 0.5, "exemplars_per_class": 20},
         "memory_rate is 0.5, expected .* null as with exemplars_per_class"),
        (CREATEModule, {"latent": 0}, "latent is 0"),
        (TagFexModule, {"attention_heads": 5}, "attention_heads is 5"),
        (TagFexModule, {"projection": [3]}, "projection is .3., expected two"),
        (PODNetModule, {"backbone": "pixels:8"}, "PODNet needs the stages"),
    ],
    ids=str,
)  # fmt: skip
def test_refused_option(method, options, said):
    with pytest.raises(UsageError, match=said):
        learner(method, **options)


def test_learning_rate_too_high(tmp_path):
    with pytest.raises(CifnetError, match=r"in task 1: the learning rate 1e\+30"):
        run(TagFexModule, tmp_path, learning_rate=1e30, epochs=3)


def test_what_only_a_frozen_network_allows_is_refused(tmp_path):
    cached = {"cache": True, "cache_folder": str(tmp_path)}
    for given, limit, said in (
        (cached, {}, r"--data\.cache stores embeddings"),
        ({}, {"limit_train_batches": 3}, "cut off whole passes"),
        ({"batch_size": 1}, {}, r"set --data\.batch_size to 2 or more"),
    ):
        with pytest.raises(UsageError, match=said):
            trainer(tmp_path, **limit).fit(learner(FinetuneModule), data(**given))


def test_gpu_out_of_memory(tmp_path, monkeypatch):
    full = Mock(side_effect=torch.cuda.OutOfMemoryError("CUDA out of memory"))
    monkeypatch.setattr(PODNetModule, "loss", full)
    said = r"memory is full: .*--data\.batch_size \(now 32\)$"
    with pytest.raises(CifnetError, match=said):
        run(PODNetModule, tmp_path, epochs=1)


def test_checkpoint_of_other_settings_and_what_is_in_training_mode(tmp_path, watch):
    modes = watch(
        DERModule,
        "loss",
        lambda self, batch: tuple(branch.training for branch in self.branches),
    )
    made, _ = run(DERModule, tmp_path, epochs=1)
    assert set(modes) == {(True,), (False, True)}
    assert not any(part.training for part in made.branches.modules())
    path = tmp_path / "it.ckpt"
    made.trainer.save_checkpoint(path)
    others = {
        "made with epochs = 1, this run has 2": learner(DERModule, epochs=2),
        "is of a DERModule|made with module = DERModule": learner(WAModule, epochs=1),
    }
    for sentence, other in others.items():
        with pytest.raises(CheckpointError, match=sentence):
            trainer(tmp_path).fit(other, datamodule=data(), ckpt_path=path)


def test_loss_scaling_goes_on_with_the_same_bits(tmp_path):
    """float16: torch has it for a CPU too, and Lightning where it is given as a plugin."""

    def fit(*callbacks, ckpt_path=None):
        made = learner(FinetuneModule, epochs=2)
        half = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
        runner = trainer(tmp_path, *callbacks, plugins=[half])
        runner.fit(made, datamodule=data(max_tasks=1), ckpt_path=ckpt_path)
        return made

    path = tmp_path / "mid.ckpt"
    whole = fit(save_at(path, task=0, batches=12))
    assert whole.evaluation.accuracy > 80
    assert all(p.dtype == torch.float32 for p in whole.parameters())
    position = torch.load(path, weights_only=True)["position"]
    scaler = position["descent"]["scaler"]
    assert scaler["scale"] > 1
    assert scaler["_growth_tracker"] > 0
    assert_same_weights(fit(ckpt_path=path), whole)
