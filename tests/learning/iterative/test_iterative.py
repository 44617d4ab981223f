"""Networks that are trained: they learn, fine-tuning forgets, iCaRL forgets less, and both go on where they stopped."""

import csv
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

import cifnet_pl.backbones
from cifnet_pl import CIFNetDataModule
from cifnet_pl.__main__ import main
from cifnet_pl.backbones import Preprocessing
from cifnet_pl.buffer import select_herding
from cifnet_pl.learning.callbacks import TaskMetrics
from cifnet_pl.learning.iterative import ExemplarSet, FinetuneModule, ICaRLModule
from cifnet_pl.model.loading import load
from cifnet_pl.report import Study, read_study
from cifnet_pl.report.tables import all_tables
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, DataError, UsageError
from tests.command_line import FAST, assert_same_model, make_photos
from tests.killing import Act, Killed, at_call
from tests.lightning_runs import digits, module, trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*GPU available.*")

SIDE, EXEMPLARS, CLASSES = 8, 9, list("abcd")
MODULES = [FinetuneModule, ICaRLModule]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A convolutional network, the same one each time it is built, in the place of a pretrained one."""

    def build(*_):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
            return nn.Sequential(*layers), 32, Preprocessing(SIDE, mean=(0.5,) * 3, std=(0.25,) * 3)

    monkeypatch.setitem(cifnet_pl.backbones.BACKBONES, "small", build)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Where others compute too, threads wait for each other longer than these small sums take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"), CLASSES, 20)


@pytest.fixture
def data(photos):
    """Two tasks of two classes, unless options say otherwise."""
    fixed = {"source": "folder", "root": str(photos), "classes_per_task": 2, "image_size": SIDE, "num_workers": 0}
    return lambda **options: CIFNetDataModule(**{**fixed, "batch_size": 10, **options})


def learner(kind=FinetuneModule, **options):
    own = {"exemplars": EXEMPLARS} if kind is ICaRLModule else {}
    return kind(**{"backbone": "small", "epochs": 8, "learning_rate": 0.05, **own, **options})


def run(kind, folder, data, *callbacks, **options):
    """(module, record) of a run through all tasks."""
    made, metrics = learner(kind, **options), TaskMetrics()
    trainer(folder, metrics, *callbacks).fit(made, datamodule=data)
    return made, metrics.record


def assert_same_weights(a, b):
    ours, theirs = a.state_dict(), b.state_dict()
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert torch.equal(value, theirs[key]), key


class TestLearning:
    @pytest.mark.parametrize("kind", MODULES)
    @pytest.mark.parametrize("schedule", ["cosine", "step"])
    def test_of_one_task(self, kind, schedule, data, tmp_path):
        _, record = run(kind, tmp_path, data(classes_per_task=4), schedule=schedule)
        assert record.trajectory[-1] > 90

    def test_finetuning_forgets_and_icarl_forgets_less(self, data, tmp_path):
        records = [run(kind, tmp_path, data())[1] for kind in MODULES]
        (own, first), (_, kept) = ((record.matrix[0][0], record.matrix[1][0]) for record in records)
        assert own > 90 > 50 > first
        assert kept > first + 30
        assert records[0].matrix[1][1] > 90  # the task that it has just learned

    def test_the_whole_network_learns_but_batch_statistics_stay(self, data, tmp_path):
        before = learner().state_dict()
        made, _ = run(FinetuneModule, tmp_path, data(max_tasks=1))
        after = made.state_dict()
        moved = {key for key, value in before.items() if not torch.equal(value, after[key])}
        names = {f"backbone.network.{layer}" for layer in ("0.weight", "0.bias", "1.weight", "1.bias")}
        assert moved == names
        assert not any(part.training for part in made.backbone.modules())

    def test_nothing_depends_on_chance(self, data, tmp_path):
        for kind in MODULES:
            runs = []
            for noise in range(2):
                torch.manual_seed(noise)
                runs.append(run(kind, tmp_path, data(), epochs=2)[0])
            assert_same_weights(*runs)
            other, _ = run(kind, tmp_path, data(), epochs=2, seed=1)
            assert not torch.equal(other.classifier[0].weight, runs[0].classifier[0].weight)

    def test_every_pass_is_an_order_of_its_own(self, data):
        rows = np.arange(7, 19)
        passes = learner().passes(rows, 1)
        assert len(passes) == 8 == len({tuple(order) for order in passes})
        assert all(sorted(order) == rows.tolist() for order in passes)
        assert [len(learner(ICaRLModule).passes(rows, task)) for task in (0, 1)] == [9, 10]
        assert [order.tolist() for order in module().passes(rows, 1)] == [rows.tolist()]

    def test_mirroring(self):
        made = learner()
        made.random = np.random.default_rng(0)
        images = torch.arange(20 * 3 * 4 * 4, dtype=torch.uint8).reshape(20, 3, 4, 4)
        seen = made.augment(images)
        mirrored = (seen != images).flatten(1).any(dim=1)
        assert 0 < mirrored.sum() < 20
        assert torch.equal(seen[mirrored], images[mirrored].flip(3))
        assert learner(flip=False).augment(images) is images

    def test_of_the_pretrained_network(self, photos, tmp_path):
        data = CIFNetDataModule("folder", str(photos), 2, image_size=32, batch_size=16, num_workers=0, max_tasks=2)
        made, record = run(
            ICaRLModule, tmp_path, data, backbone="embedded:efficientnet_lite0", epochs=1, learning_rate=0.01
        )
        assert record.trajectory[-1] > 80
        assert made.state_elements()["parameters"] > 3e6


class TestICaRL:
    def test_exemplars(self, data, tmp_path):
        counts = []
        watch = Act("on_train_epoch_start", 1, lambda t: counts.append(len(t.lightning_module.exemplars)))
        made, record = run(ICaRLModule, tmp_path, data(), watch)
        assert counts == [2 * (EXEMPLARS // 2)]
        assert torch.bincount(made.exemplars.label).tolist() == [EXEMPLARS // 4] * 4
        assert record.rows[-1].buffer_elements == 8 * 3 * SIDE**2
        assert record.rows[-1].state_elements == 8 * 3 * SIDE**2 + 4 * 32 + 8 * 28 + 16 + 4 * 33
        images = data().source.train
        for image, label in zip(made.exemplars.image, made.exemplars.label, strict=True):
            own = images.rows_of[CLASSES.index(made.class_names[label])]
            assert any(np.array_equal(images.square(row, SIDE, 1.0), image.permute(1, 2, 0)) for row in own)

    def test_more_room_than_images(self, data, tmp_path):
        made, _ = run(ICaRLModule, tmp_path, data(), exemplars=10_000, epochs=1)
        assert torch.bincount(made.exemplars.label).tolist() == [16] * 4

    def test_herding_is_on_the_network_that_has_learned(self, data, tmp_path):
        made, _ = run(ICaRLModule, tmp_path, data(max_tasks=1), epochs=2)
        images = data().source.train
        rows = images.rows_of[CLASSES.index(made.class_names[1])]
        pixels = torch.stack([torch.from_numpy(images.square(row, SIDE, 1.0)) for row in rows]).permute(0, 3, 1, 2)
        best = select_herding(made.backbone(pixels), torch.arange(len(rows)), 0, EXEMPLARS // 2)
        assert torch.equal(made.exemplars.image[made.exemplars.label == 1], pixels[best])

    def test_prediction_is_the_nearest_mean(self, data, tmp_path):
        made, _ = run(ICaRLModule, tmp_path, data(), epochs=2)
        z = nn.functional.normalize(made.backbone(made.exemplars.image), dim=1).double()
        means = torch.stack([z[made.exemplars.label == c].mean(dim=0) for c in range(4)])
        distance = torch.cdist(z, nn.functional.normalize(means, dim=1))
        probabilities = made(made.exemplars.image)
        assert torch.equal(probabilities.argmax(dim=1), distance.argmin(dim=1))
        assert torch.allclose(probabilities, (-distance.square()).softmax(dim=1), atol=1e-6)

    def test_loss_is_the_papers(self, data, tmp_path, monkeypatch):
        seen = []
        real = ICaRLModule._descend

        def step(self, image, label, row, replayed):
            if self.old and not seen:
                network = self.forward_scores(torch.cat([image, self.exemplars.image[replayed]]))
                labels = torch.cat([label, self.exemplars.label[replayed]]).tolist()
                g = network.double().sigmoid().tolist()  # nothing has been learned yet, so that q = g
                loss = 0.0
                for outputs, y in zip(g, labels, strict=True):
                    for c, p in enumerate(outputs):
                        target = p if c < self.old else float(c == y)
                        loss -= target * math.log(p) + (1 - target) * math.log(1 - p)
                seen.append(loss / len(labels))
                assert len(replayed) > 0
            real(self, image, label, row, replayed)

        def descend(self, loss):
            if len(seen) == 1:
                seen.append(loss.item())
            return real_descend(self, loss)

        real_descend = ICaRLModule.descend
        monkeypatch.setattr(ICaRLModule, "_descend", step)
        monkeypatch.setattr(ICaRLModule, "descend", descend)
        scores = lambda self, images: self.scores(self.embed(images))  # noqa: E731
        monkeypatch.setattr(ICaRLModule, "forward_scores", scores, raising=False)
        run(ICaRLModule, tmp_path, data(), flip=False, epochs=2)
        assert seen[1] == pytest.approx(seen[0], rel=1e-5)

    def test_targets_stay_those_of_the_old_network(self, data, tmp_path, monkeypatch):
        targets = []

        def step(self, image, label, row, replayed):
            if self.old:
                targets.append((row.tolist(), self._outputs[row].clone()))
            return real(self, image, label, row, replayed)

        real = ICaRLModule._descend
        monkeypatch.setattr(ICaRLModule, "_descend", step)
        run(ICaRLModule, tmp_path, data(), epochs=3)
        found = {}
        for rows, values in targets:
            for row, value in zip(rows, values.tolist(), strict=True):
                assert found.setdefault(row, value) == value
                assert all(0 < p < 1 for p in value)
        assert len(found) == 32

    def test_each_pass_shows_each_exemplar_once(self, data, tmp_path, monkeypatch):
        shown = []
        real = ICaRLModule._descend
        note = lambda self, i, y, row, replayed: (shown.append(replayed.tolist()), real(self, i, y, row, replayed))  # noqa: E731
        monkeypatch.setattr(ICaRLModule, "_descend", note)
        run(ICaRLModule, tmp_path, data(), epochs=3)
        second = shown[len(shown) // 2 :]
        assert len(second) == 3 * 4
        for k in range(3):
            assert sorted(itertools.chain(*second[4 * k : 4 * k + 4])) == list(range(8))

    def test_exemplar_set(self):
        kept = ExemplarSet()
        images = torch.arange(5 * 3, dtype=torch.uint8).reshape(5, 3, 1, 1)
        kept.shrink(3)
        kept.add(images[:3], 0)
        kept.shrink(2)
        kept.add(images[3:], 1)
        assert kept.image.flatten(1)[:, 0].tolist() == [0, 3, 9, 12]
        kept.average(torch.tensor([[2.0, 0], [0, 5], [1, 1], [1, 1]]))
        assert torch.allclose(kept.mean, torch.full((2, 2), 0.5**0.5))
        fresh = ExemplarSet()
        fresh.load_state_dict(kept.state_dict())
        assert torch.equal(fresh.image, kept.image)


def die(*_):
    raise Killed


class TestResume:
    @pytest.mark.parametrize("kind", MODULES)
    def test_after_a_kill(self, kind, photos, tmp_path, monkeypatch):
        options = [
            "--model",
            f"cifnet_pl.learning.iterative.{kind.__name__}",
            "--model.epochs",
            "2",
            "--seed_everything",
            "5",
        ]
        options += ["--model.backbone", "small", "--data.root", str(photos), "--data.classes_per_task", "2"]
        options += ["--data.image_size", str(SIDE), "--data.num_workers", "0", "--energy.enabled", "false"]
        options += ["--data.batch_size", "16"]
        assert main(["fit", *options, "--logs", str(tmp_path / "whole")]) == 0
        whole = tmp_path / "whole" / "default" / "version_0"
        assert yaml.safe_load((whole / "config.yaml").read_text())["model"]["init_args"]["seed"] == 5

        with monkeypatch.context() as patched:
            # The second task's last batch, of two in each pass.
            batches = 2 * (2 + 2) if kind is FinetuneModule else 2 * (3 + 4)
            patched.setattr(kind, "learn", at_call(batches, kind.learn, die))
            with pytest.raises(Killed):
                main(["fit", *options, "--logs", str(tmp_path)])
        again = tmp_path / "default" / "version_0"
        assert not (again / "summary.json").exists()
        assert main(["fit", *options, "--logs", str(tmp_path), "--ckpt_path", "last"]) == 0
        assert_same_model(again, whole)
        ours, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (again, whole))
        assert ours["A_k"] == theirs["A_k"]
        with pytest.raises(CheckpointError, match=f"is of a {kind.__name__}, expected a CIFNetModule"):
            load(again)

    @pytest.mark.parametrize("kind", MODULES)
    def test_from_the_middle_of_a_task(self, kind, data, tmp_path):
        save = Act("on_train_batch_end", 1, lambda t: t.save_checkpoint(tmp_path / "mid.ckpt"), batches=7)
        whole, _ = run(kind, tmp_path, data(), save)
        again = learner(kind)
        trainer(tmp_path, TaskMetrics()).fit(again, datamodule=data(), ckpt_path=tmp_path / "mid.ckpt")
        assert_same_weights(again, whole)

    @pytest.mark.parametrize("kind", MODULES)
    def test_in_the_process_that_was_interrupted(self, kind, data, tmp_path):
        whole, _ = run(kind, tmp_path, data())
        made = learner(kind)
        stop = Act("on_train_batch_end", 1, die, batches=7)
        with pytest.raises(Killed):
            trainer(tmp_path, stop).fit(made, datamodule=data())
        assert made.tasks_finished == 1
        trainer(tmp_path).fit(made, datamodule=data())
        assert_same_weights(made, whole)

    def test_evaluation_of_a_checkpoint(self, data, tmp_path):
        made, record = run(ICaRLModule, tmp_path, data())
        made.trainer.save_checkpoint(tmp_path / "it.ckpt")
        again = learner(ICaRLModule)
        trainer(tmp_path).validate(again, datamodule=data(), ckpt_path=tmp_path / "it.ckpt", verbose=False)
        assert again.evaluation.accuracy == record.trajectory[-1]

    def test_of_another_run(self, data, tmp_path):
        made, _ = run(FinetuneModule, tmp_path, data(max_tasks=1))
        made.trainer.save_checkpoint(tmp_path / "it.ckpt")
        for other, said in (
            (learner(learning_rate=0.1), "made with learning_rate = 0.05, this run has 0.1"),
            (learner(ICaRLModule), "made with module = FinetuneModule"),
        ):
            with pytest.raises(CheckpointError, match=said):
                trainer(tmp_path).fit(other, datamodule=data(), ckpt_path=tmp_path / "it.ckpt")
        content = torch.load(tmp_path / "it.ckpt", weights_only=True)
        del content["state_dict"]["classifier.0.bias"]
        torch.save(content, tmp_path / "it.ckpt")
        with pytest.raises(CheckpointError, match="does not fit the network"):
            trainer(tmp_path).fit(learner(), datamodule=data(), ckpt_path=tmp_path / "it.ckpt")


class TestResults:
    def test_are_those_of_every_run(self, data, tmp_path):
        files = []
        for made, source in ((learner(epochs=3), data()), (module(), digits(max_tasks=2))):
            logger = TensorBoardLogger(tmp_path, name=type(made).__name__)
            trainer(tmp_path, TaskMetrics(), logger=logger).fit(made, datamodule=source)
            folder = tmp_path / type(made).__name__ / "version_0"
            with (folder / "tasks.csv").open() as file:
                header = next(csv.reader(file))
            files.append((header, json.loads((folder / "summary.json").read_text())))
        (ours, summary), (theirs, other) = files
        assert ours == theirs
        assert other.keys() - summary.keys() == {"head_settings", "buffer_settings"}
        assert (summary["epochs"], other["epochs"]) == (3, 1)
        assert (summary["head"], summary["backbone"]) == ("FinetuneModule", "small")

    def test_stand_in_one_report_with_their_epochs(self, photos, tmp_path):
        fixed = [*FAST, "--data.source", "folder", "--data.root", str(photos), "--logs", str(tmp_path)]
        for name in ("finetune", "icarl"):
            config = str(Path(__file__).parents[3] / "configs" / "iterative" / f"{name}.yaml")
            assert main(["fit", "--config", config, *fixed, "--model.epochs", "2"]) == 0
        assert main(["fit", "--model.head", "RidgeHead", *fixed]) == 0
        groups = {group.label: group for group in read_study([tmp_path]).groups}
        epochs = {label: group.stat("epochs").mean for label, group in groups.items()}
        assert epochs == {"Exact ridge": 1, "Fine-tuning": 2, "iCaRL": 2}
        tables = all_tables(Study(list(groups.values())))
        (efficiency,) = tables["Efficiency"]
        assert "epochs" in [column.header for column in efficiency.columns]
        (settings,) = tables["Settings"]
        assert "epochs=2, exemplars=2000, flip=True, learning_rate=" in str(settings.rows[-1][-1])


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"epochs": 0}, "epochs is 0"),
            ({"seed": -1}, "seed -1"),
            ({"learning_rate": 0.0}, "learning_rate is 0"),
            ({"learning_rate": float("inf")}, "learning_rate is inf"),
            ({"momentum": 1.0}, "momentum 1"),
            ({"weight_decay": -1.0}, "weight_decay -1"),
            ({"schedule": "cosin"}, "did you mean cosine"),
            ({"kind": ICaRLModule, "exemplars": 0}, "exemplars is 0"),
        ],
        ids=str,
    )
    def test_option(self, options, said):
        with pytest.raises(UsageError, match=said):
            learner(**options)

    @pytest.mark.parametrize("kind", MODULES)
    def test_learning_rate_too_high(self, kind, data, tmp_path):
        with pytest.raises(CifnetError, match=r"in task 1: the learning rate 1e\+30 is too high"):
            run(kind, tmp_path, data(), learning_rate=1e30)

    def test_last_step_too_far(self, data, tmp_path):
        with pytest.raises(CifnetError, match=r"(weights are not finite|the loss is).* in task 1"):
            run(FinetuneModule, tmp_path, data(batch_size=100), learning_rate=3e38, epochs=2)

    def test_cache(self, data, tmp_path):
        with pytest.raises(UsageError, match=r"--data\.cache keeps what a frozen network computes"):
            run(FinetuneModule, tmp_path, data(cache=True, cache_folder=str(tmp_path)))

    def test_fewer_exemplars_than_classes(self, data, tmp_path):
        with pytest.raises(UsageError, match="3 exemplars cannot cover 4 classes"):
            run(ICaRLModule, tmp_path, data(), exemplars=3)

    def test_cut_passes(self, data, tmp_path):
        with pytest.raises(UsageError, match="cut off whole passes"):
            trainer(tmp_path, limit_train_batches=3).fit(learner(), datamodule=data())

    @pytest.mark.parametrize(
        ("option", "said"),
        [({"world_size": 2}, "learns in one process, not in 2"), ({"precision": "16-mixed"}, "use bf16-mixed")],
        ids=str,
    )
    def test_trainer(self, option, said):
        made = learner()
        plain = {"world_size": 1, "precision": "32-true", "datamodule": SimpleNamespace(cache_folder=None)}
        made._trainer = SimpleNamespace(**{**plain, **option})
        with pytest.raises(UsageError, match=said):
            made.setup("fit")

    @pytest.mark.parametrize("kind", MODULES)
    def test_class_without_a_readable_image(self, kind, tmp_path):
        make_photos(tmp_path / "photos", CLASSES, 5)
        for path in (tmp_path / "photos" / "b").iterdir():
            path.write_bytes(b"no image")
        data = CIFNetDataModule(
            "folder", str(tmp_path / "photos"), 2, image_size=SIDE, num_workers=0, batch_size=3, on_corrupt="skip"
        )
        with pytest.raises(DataError, match="no image of class 'b' was learned"):
            run(kind, tmp_path, data)
