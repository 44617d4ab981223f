"""The regime that trained methods share: batch statistics, exemplars, rates, and what is refused in
one sentence.
"""

import json
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
from cifnet_pl.model.store import load
from cifnet_pl.utilities.errors import (
    CheckpointError,
    CifnetError,
    UsageError,
)
from tests.command_line import DATA, assert_same_model
from tests.iterative.suite import SIDE, assert_same_weights, data, learner, run
from tests.killing import Act, Killed, at_call, die
from tests.lightning_runs import trainer

# ---------------------------------------------------------------------- learning


class TestStatistics:
    def test_fixed(self, tmp_path):
        before = learner(FinetuneModule).state_dict()
        made, _ = run(
            FinetuneModule,
            tmp_path,
            epochs=1,
            batch_statistics="fixed",
            learning_rate=0.01,
        )
        moved = {
            k
            for k, value in made.state_dict().items()
            if k in before and not torch.equal(value, before[k])
        }
        assert not any("running" in key for key in moved)
        assert {"network.first.0.weight", "network.first.1.weight"} <= moved

    def test_only_what_learns_is_in_training_mode(self, tmp_path, watch):
        modes = watch(
            DERModule,
            "loss",
            lambda self, batch: tuple(branch.training for branch in self.branches),
        )
        made, _ = run(DERModule, tmp_path, epochs=1)
        assert set(modes) == {(True,), (False, True)}
        assert not any(split.training for split in made.branches.modules())


class TestExemplars:
    def test_are_training_images_and_fewer_as_classes_come(self, tmp_path):
        made, _ = run(ReplayModule, tmp_path, epochs=1)
        assert torch.bincount(made.exemplars.label).tolist() == [15] * 4
        images = data().source.train
        for image, label in zip(
            made.exemplars.image, made.exemplars.label, strict=True
        ):
            class_rows = images.rows_of[images_class(made, int(label))]
            assert any(
                np.array_equal(images.image(row).square(SIDE), image.permute(1, 2, 0))
                for row in class_rows
            )

    def test_of_each_class(self, tmp_path):
        made, _ = run(ReplayModule, tmp_path, epochs=1, exemplars_per_class=7)
        assert torch.bincount(made.exemplars.label).tolist() == [7] * 4

    def test_prediction_is_the_nearest_mean(self, tmp_path):
        made, _ = run(ICaRLModule, tmp_path, epochs=2)
        z = functional.normalize(made.embed(made.exemplars.image), dim=1).double()
        means = torch.stack(
            [z[made.exemplars.label == c].mean(dim=0) for c in range(4)]
        )
        distance = torch.cdist(z, functional.normalize(means, dim=1))
        probabilities = made(made.exemplars.image)
        assert torch.equal(probabilities.argmax(dim=1), distance.argmin(dim=1))
        assert torch.allclose(
            probabilities, (-distance.square()).softmax(dim=1), atol=1e-5
        )


def images_class(made, label: int) -> int:
    return made.data.source.class_names.index(made.class_names[label])


class TestMemoryShare:
    """RMM: exemplars and the task's images share one memory."""

    def test_more_exemplars_leave_fewer_new_images(self, tmp_path, watch):
        plans = watch(
            trainer_module,
            "plan_steps",
            lambda rows, exemplars, *_: (len(rows), exemplars),
        )
        run(FOSTERModule, tmp_path, epochs=1, exemplars=20, memory_rate=0.1)
        new = len(data().plan.rows[1])
        learned, exemplars = next(plan for plan in plans if plan[1])
        assert exemplars == 2 * ((20 + round(0.1 * new)) // 2)
        assert learned + exemplars == 20 + new


class TestParameters:
    """As the paper counts them on CIFAR-100: DER and MEMO of 20 tasks, TagFex of 10."""

    @pytest.mark.parametrize(
        ("method", "tasks", "millions"),
        [
            (DERModule, 20, 9.27),
            (MEMOModule, 20, 7.14),
            (TagFexModule, 10, 7.42),
            (FOSTERModule, 10, 0.46),
            (WAModule, 10, 0.46),
        ],
    )
    def test_on_cifar_100(self, method, tasks, millions):
        made = method(backbone="random:resnet32_cifar")
        made.rebuild([100 // tasks] * tasks)
        count = sum(p.numel() for p in made.counted_module().parameters())
        assert round(count / 1e6, 2) == millions


def test_rate_and_decay_of_the_first_task_and_of_others(tmp_path, watch):
    seen = watch(
        Descent,
        "__init__",
        lambda self, module, parts, phase: (
            phase.learning_rate,
            phase.weight_decay,
            module.epochs,
        ),
    )
    run(
        FinetuneModule,
        tmp_path,
        epochs=[2, 1],
        learning_rate=[0.1, 0.01],
        weight_decay=[0.5e-3, 0.2e-3],
    )
    assert seen == [(0.1, 0.5e-3, 1), (0.01, 0.2e-3, 1)]


def test_icarls_binary_loss_is_the_papers(tmp_path):
    _, record = run(ICaRLModule, tmp_path, loss="binary", epochs=6)
    assert record.trajectory[-1] > 80


# ---------------------------------------------------------------------- the command line

OPTIONS = [
    *DATA,
    "--data.max_tasks",
    "2",
    "--data.batch_size",
    "32",
    "--model.backbone",
    "small",
]


class TestCommandLine:
    def test_after_a_kill_inside_a_task(self, tmp_path, monkeypatch):
        line = ["--model", "cifnet_pl.iterative.FOSTERModule", *OPTIONS]
        line += ["--model.epochs", "1", "--seed_everything", "5"]
        assert main(["fit", *line, "--logs", str(tmp_path / "whole")]) == 0
        line += ["--checkpoint.every_minutes", "0", "--logs"]
        whole = tmp_path / "whole" / "default" / "version_0"
        config = yaml.safe_load((whole / "config.yaml").read_text())
        assert config["seed_everything"] == 5
        with monkeypatch.context() as patched:
            patched.setattr(FOSTERModule, "loss", at_call(20, FOSTERModule.loss, die))
            with pytest.raises(Killed):
                main(["fit", *line, str(tmp_path)])
        again = tmp_path / "default" / "version_0"
        stopped = torch.load(again / "checkpoints" / "last.ckpt", weights_only=True)
        assert stopped["cifnet"]["under_way"]
        assert stopped["position"]["step"] > 0
        assert main(["fit", *line, str(tmp_path), "--ckpt_path", "last"]) == 0
        assert_same_model(again, whole)
        ours = json.loads((again / "summary.json").read_text())
        theirs = json.loads((whole / "summary.json").read_text())
        assert ours["A_k"] == theirs["A_k"]
        assert load(again).counts == load(whole).counts

    def test_summary(self, tmp_path):
        line = [
            "--model",
            "cifnet_pl.iterative.DERModule",
            *OPTIONS,
            "--model.epochs",
            "1",
            "--model.preset",
            "mine",
        ]
        assert main(["fit", *line, "--logs", str(tmp_path)]) == 0
        summary = json.loads(
            (tmp_path / "default" / "version_0" / "summary.json").read_text()
        )
        small = sum(p.numel() for p in learner(FinetuneModule).network.parameters())
        assert summary["head"] == "DERModule"
        assert summary["preset"] == "mine"
        assert summary["epochs"] == 1
        assert summary["network_params"] == small
        assert summary["backbone_params"] == 2 * small


# ---------------------------------------------------------------------- bad input


FULL = Mock(side_effect=torch.cuda.OutOfMemoryError("CUDA out of memory"))


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"epochs": 0}, "epochs is 0, expected at least 1"),
            ({"seed": -1}, "seed is -1, expected at least 0"),
            ({"learning_rate": 0.0}, "learning_rate is 0"),
            ({"learning_rate": float("inf")}, "learning_rate is inf"),
            ({"momentum": 1.0}, "momentum is 1, expected at least 0 and below 1"),
            ({"weight_decay": -1.0}, "weight_decay is -1, expected at least 0"),
            ({"crop_padding": -1}, "crop_padding is -1"),
            ({"brightness": 1.5}, "brightness is 1.5, expected a number between 0 and 1"),
            ({"cutout": -0.5}, "cutout is -0.5, expected a number between 0 and 1"),
            ({"kind": ReplayModule, "exemplars": 0}, "exemplars is 0"),
            ({"kind": PODNetModule, "proxies": 0}, "proxies is 0"),
            ({"kind": PODNetModule, "tuning": -1.0}, "tuning is -1, expected at least 0"),
            ({"kind": CREATEModule, "tuning_rate": 0.0}, "tuning_rate is 0"),
            ({"kind": FOSTERModule, "boosting_beta": 1.0}, "boosting_beta is 1"),
            ({"kind": FOSTERModule, "memory_rate": 1.5}, "memory_rate is 1.5"),
            (
                {"kind": FOSTERModule, "memory_rate": 0.5, "exemplars_per_class": 20},
                "leave out --model.memory_rate or --model.exemplars_per_class",
            ),
            ({"kind": CREATEModule, "latent": 0}, "latent is 0"),
            ({"kind": TagFexModule, "attention_heads": 5}, "attention_heads is 5"),
            ({"kind": TagFexModule, "projection": [3]}, "projection is .3., expected two"),
            ({"kind": MEMOModule, "backbone": "pixels:8"}, "MEMO needs the stages"),
            ({"kind": PODNetModule, "backbone": "pixels:8"}, "PODNet needs the stages"),
        ],
        ids=str,
    )  # fmt: skip
    def test_option(self, options, said):
        kind = options.get("kind", FinetuneModule)
        with pytest.raises(UsageError, match=said):
            learner(
                kind,
                **{name: value for name, value in options.items() if name != "kind"},
            )

    def test_learning_rate_too_high(self, tmp_path):
        with pytest.raises(CifnetError, match=r"in task 1: the learning rate 1e\+30"):
            run(TagFexModule, tmp_path, learning_rate=1e30, epochs=3)

    def test_cache(self, tmp_path):
        with pytest.raises(UsageError, match=r"--data\.cache stores embeddings"):
            run(
                FinetuneModule,
                tmp_path,
                given={"cache": True, "cache_folder": str(tmp_path)},
            )

    def test_cut_passes(self, tmp_path):
        with pytest.raises(UsageError, match="cut off whole passes"):
            trainer(tmp_path, limit_train_batches=3).fit(
                learner(FinetuneModule), datamodule=data()
            )

    def test_gpu_out_of_memory(self, tmp_path, monkeypatch):
        monkeypatch.setattr(PODNetModule, "loss", FULL)
        said = r"memory is full: .*--data\.batch_size \(now 32\)$"
        with pytest.raises(CifnetError, match=said):
            run(PODNetModule, tmp_path, epochs=1)

    def test_checkpoint_of_other_settings(self, tmp_path):
        made, _ = run(DERModule, tmp_path, epochs=1)
        made.trainer.save_checkpoint(tmp_path / "it.ckpt")
        others = {
            "made with epochs = 1, this run has 2": learner(DERModule, epochs=2),
            "is of a DERModule|made with module = DERModule": learner(
                WAModule, epochs=1
            ),
        }
        for sentence, other in others.items():
            with pytest.raises(CheckpointError, match=sentence):
                trainer(tmp_path).fit(
                    other, datamodule=data(), ckpt_path=tmp_path / "it.ckpt"
                )


class TestLossScaling:
    """float16: torch has it for a CPU too, and Lightning where it is given as a plugin."""

    @staticmethod
    def half() -> MixedPrecision:
        return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))

    def test_it_learns_and_goes_on_with_the_same_bits(self, tmp_path):
        whole, again = (learner(FinetuneModule, epochs=2) for _ in range(2))
        save = Act(
            "on_train_batch_end",
            0,
            lambda t: t.save_checkpoint(tmp_path / "mid.ckpt"),
            batches=12,
        )
        trainer(tmp_path, save, plugins=[self.half()]).fit(
            whole, datamodule=data(max_tasks=1)
        )
        assert whole.evaluation.accuracy > 80
        assert all(p.dtype == torch.float32 for p in whole.parameters())
        scaler = torch.load(tmp_path / "mid.ckpt", weights_only=True)["position"][
            "descent"
        ]["scaler"]
        assert scaler["scale"] > 1
        assert scaler["_growth_tracker"] > 0
        run_again = trainer(tmp_path, plugins=[self.half()])
        run_again.fit(
            again, datamodule=data(max_tasks=1), ckpt_path=tmp_path / "mid.ckpt"
        )
        assert_same_weights(again, whole)
