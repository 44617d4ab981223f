"""Runs, checkpoints and bundles are loaded alike; hostile ones are refused, nothing executed."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.backbones import build_backbone
from cifnet_pl.heads import RidgeHead
from cifnet_pl.model.bundle import CONFIG
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.store import load, load_bundle
from cifnet_pl.utilities.errors import (
    AlreadyThere,
    CheckpointError,
    CifnetError,
    DataError,
    UsageError,
)
from tests import models
from tests.command_line import BUFFER, checkpoint, fit
from tests.command_line import learned as learned_run

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:17\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned_run(
        tmp_path_factory.mktemp("logs"), *BUFFER, "--checkpoint.every_task", "true"
    )


def test_run_checkpoint_and_bundle_are_the_same_model(run: Path, tmp_path: Path):
    assert main(["export", "--model", str(run), "--output", str(tmp_path / "b")]) == 0
    z = torch.rand(20, 192)
    last = run / "checkpoints" / "last.ckpt"
    # A checkpoint needs nothing beside it.
    alone = shutil.copy(last, tmp_path / "alone.ckpt")
    places = [run, run.parent, last, alone, tmp_path / "b"]
    loaded = [cifnet_pl.load(path, device="cpu") for path in places]
    for model in loaded:
        assert torch.equal(model.head(z), loaded[0].head(z))
        assert model.describe() == loaded[0].describe()
    first = loaded[0]
    assert first.class_names == [str(c) for c in range(10)]
    assert first.tasks == [[str(c), str(c + 1)] for c in range(0, 10, 2)]
    measured = [row["A_k"] for row in checkpoint(run)["cifnet"]["record"]["rows"]]
    assert [event.accuracy for event in first.history] == measured
    assert (first.image_size, first.crop_ratio, first.held_out) == (8, 1.0, (0.2, 0))
    assert len(first.buffer.y) == 300


def test_random_weights_of_a_frozen_backbone_are_in_the_model(tmp_path: Path):
    backbone = build_backbone("random:resnet32_cifar", engine="torch")
    model = models.learn_embeddings(
        Classifier(backbone, RidgeHead(64)),
        ["ant", "bee"],
        torch.randn(4, 64),
        torch.tensor([0, 0, 1, 1]),
    )
    model.save(tmp_path / "b")
    again = cifnet_pl.load(tmp_path / "b", device="cpu", engine="torch")
    assert again.describe() == model.describe()
    images = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(again.backbone(images), backbone(images))


def test_a_bundle_shares_a_backbone_only_if_it_is_its_own(tmp_path: Path):
    models.learned("ridge").save(tmp_path / "b")
    same = build_backbone(f"pixels:{models.SIDE}")
    other = build_backbone("pixels:4")
    assert load_bundle(tmp_path / "b", backbone=same).backbone is same
    own = load_bundle(tmp_path / "b", backbone=other).backbone
    assert own.describe() == same.describe()


def test_earlier_tasks_and_newest_versions(run: Path, tmp_path: Path):
    assert len(cifnet_pl.load(run / "checkpoints" / "task_2.ckpt").class_names) == 4
    shutil.copytree(run, tmp_path / "e" / "version_2")
    (tmp_path / "e" / "version_11").mkdir()  # has not begun
    assert len(cifnet_pl.load(tmp_path / "e").class_names) == 10


# ---------------------------------------------------------------------- bundles


@pytest.mark.parametrize("head", models.MAKERS)
def test_round_trip_is_bit_identical_and_goes_on_learning(head: str, tmp_path: Path):
    model = models.learned(head, [["ant", "bee"], ["cat"]])
    model.save(tmp_path / "b")
    again = cifnet_pl.load(tmp_path / "b", device="cpu")
    z = torch.randn(20, models.WIDTH, generator=torch.Generator().manual_seed(3))
    assert torch.equal(again.head(z), model.head(z))
    assert again.describe() == model.describe()
    assert models.tensors_equal(again.tensors(), model.tensors())
    for either in (model, again):
        models.learn_task(either, ["gnu"])
    assert torch.equal(again.head(z), model.head(z))


def test_a_bundle_of_format_2_as_it_was_written_gives_the_scores_it_gave():
    """Files stored beside this test: other scores, or other files, need another format."""
    model = load_bundle(Path(__file__).parent / "format_2")
    gave = json.loads((Path(__file__).parent / "format_2_scores.json").read_text())
    z = torch.tensor(gave["embeddings"])
    given = {"scores": model.head(z), "probabilities": model.head.probabilities(z)}
    for name, values in given.items():
        expected = torch.tensor(gave[name], dtype=torch.float64)
        torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9)
    assert model.tasks == [["ant", "bee"], ["cat"], ["dog", "elk", "fox"]]
    assert set(model.counts.values()) == {7}
    assert model.held_out == (0.2, 0)
    assert model.history[-1].class_names == ["dog", "elk", "fox"]


def test_content_decides_the_file(tmp_path: Path):
    """The same model may be saved again; another one replaces it only where that is asked for."""
    bundle = tmp_path / "b"
    models.learned("ridge").save(bundle)
    models.learned("ridge").save(tmp_path / "same")
    same = sorted((tmp_path / "same").iterdir())
    for file, other in zip(sorted(bundle.iterdir()), same, strict=True):
        assert (file.name, file.read_bytes()) == (other.name, other.read_bytes())
    with pytest.raises(AlreadyThere) as caught:
        models.learned("ridge").save(bundle)
    assert caught.value.exit_code == 0
    renamed = models.learned("ridge")
    renamed.class_names[0] = "other"
    for other in (renamed, models.learned("ncm")):
        with pytest.raises(UsageError, match="--overwrite true"):
            other.save(bundle)
    assert type(load_bundle(bundle).head).__name__ == "RidgeHead"
    models.learned("ncm").save(bundle, overwrite=True)
    assert type(load_bundle(bundle).head).__name__ == "NCMHead"
    assert len(list(bundle.iterdir())) == 2  # the old tensors are gone
    (bundle / CONFIG).unlink()  # a writer was killed before it
    models.learned("ncm").save(bundle)
    assert type(load_bundle(bundle).head).__name__ == "NCMHead"


def test_foreign_folders_are_never_overwritten(tmp_path: Path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").touch()
    with pytest.raises(UsageError, match="other files"):
        models.learned().save(tmp_path / "images", overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        models.learned().save(tmp_path / "file", overwrite=True)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.jpg", "file", "images"]


@pytest.mark.parametrize("name", ["../up", "a\nb", ""])
def test_names_that_are_no_names_are_not_stored(name: str, tmp_path: Path):
    with pytest.raises(DataError, match="class name"):
        models.learned(tasks=[["ant", name]]).save(tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CIFNetHead with a buffer."""
    folder = tmp_path_factory.mktemp("bundle") / "b"
    models.learned("cifnet").save(folder)
    return folder


@pytest.fixture
def forged(bundle: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(bundle, tmp_path / "b"))


@pytest.mark.parametrize(
    ("pattern", "change", "reason"),
    [
        ("tensors-*", lambda content: content[:-1] + b"x", "checksum is wrong"),
        ("tensors-*", None, "not whole"),
        (CONFIG, None, "not a bundle"),
        ("tensors-*", lambda _: POINTER, "tensors-.*: .*git lfs pull"),
        (CONFIG, lambda _: POINTER, "config.json: .*git lfs pull"),
    ],
)
def test_damaged_bundles_are_refused(pattern, change, reason, forged):
    (file,) = forged.glob(pattern)
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(file.read_bytes()))
    with pytest.raises(CheckpointError, match=reason):
        load_bundle(forged)


DESCRIPTIONS = [
    ("format", 99, "has format '99', this version reads"),
    ("head", None, "head is 'None': Input should be a valid dictionary"),
    ("head class", "os.system", "would import os.system: add --trust"),
    ("head class", "Head", "unknown head"),
    ("head unheard_of", 1, "settings of head"),
    ("backbone name", "pixels:100000", "sha256"),
    ("buffer capacity", -1, "buffer"),
    ("buffer", None, "Unexpected"),
    ("class_names", [*"aabcde"], "twice"),
    ("class_names", [*"abcde"], "damaged"),
    ("history", [{"what": "x"}], "history"),
]


@pytest.mark.parametrize(("entry", "value", "reason"), DESCRIPTIONS)
def test_descriptions_that_do_not_fit(entry, value, reason, forged):
    config = models.config_of(forged)
    *groups, key = entry.split()
    record = config
    for group in groups:
        record = record[group]
    record[key] = value
    models.forge(forged, config)
    with pytest.raises(CifnetError, match=r"(?s).*" + reason):
        load_bundle(forged)


TENSORS = [
    ("head.cohorts.0.sums.packed_gram", float("nan"), "NaN"),
    ("head.temperature", 0.0, "finite probabilities"),
    ("head.solved", 0, "middle of a task"),
    ("head.under_way", 1, "middle of a task"),
    ("head.labels", None, "head.labels"),
    ("head.labels", torch.zeros(6), "torch.float32"),
    ("head.cohorts.3.past", torch.tensor(0), "damaged"),
]
"""Name, its first number (None to remove the tensor, or another tensor), what is said."""


@pytest.mark.parametrize(("name", "value", "reason"), TENSORS)
def test_tensors_that_do_not_fit(name, value, reason, forged):
    tensors = models.tensors_of(forged)
    old = tensors.pop(name, None)
    if isinstance(value, Tensor):
        tensors[name] = value
    elif value is not None:
        tensors[name] = old.clone()
        tensors[name].view(-1)[0] = value
    models.forge(forged, models.config_of(forged), tensors)
    with pytest.raises(CheckpointError, match=reason):
        load_bundle(forged)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": NaN}', b"\xff\xfe"])
def test_descriptions_that_are_no_description(content: bytes, forged: Path):
    (forged / CONFIG).write_bytes(content)
    with pytest.raises(CheckpointError):
        load_bundle(forged)


# ---------------------------------------------------------------------- mutation


def mutate(content: bytes, draw: st.DataObject) -> bytes:
    """Overwrite, cut, double or insert a few bytes somewhere."""
    data = bytearray(content)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, max(0, len(data) - 1)))
        some = draw.draw(st.binary(max_size=8) | st.just(bytes(data[at : at + 64])))
        data[at : at + draw.draw(st.sampled_from([0, 1, 8, 200]))] = some
    return bytes(data)


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(st.data())
@pytest.mark.parametrize("kind", ["tensors", "config", "checkpoint"])
def test_mutated_bytes(kind, run, bundle, tmp_path, data):
    """Either one error of the package, in one line, or a model that answers."""
    shutil.rmtree(tmp_path / "m", ignore_errors=True)
    forged = Path(shutil.copytree(bundle, tmp_path / "m"))
    (tensors,) = forged.glob("tensors-*")
    if kind == "tensors":
        models.forge(
            forged, models.config_of(bundle), mutate(tensors.read_bytes(), data)
        )
    elif kind == "config":
        (forged / CONFIG).write_bytes(mutate((forged / CONFIG).read_bytes(), data))
    else:
        content = (run / "checkpoints" / "last.ckpt").read_bytes()
        forged = tmp_path / "last.ckpt"
        forged.write_bytes(mutate(content, data))
    said = ""
    try:
        model = load(forged, device="cpu")
        scores = model.head(torch.zeros(2, model.head.in_features))
        assert scores.shape == (2, len(model.class_names))
    except CifnetError as error:
        said = str(error)
    assert "\n" not in said


# ---------------------------------------------------------------------- checkpoints


def rewritten(run: Path, target: Path, change) -> Path:
    content = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    change(content)
    torch.save(content, target)
    return target


CHECKPOINTS = [
    (lambda c: c.pop("cifnet"), "no checkpoint of a run"),
    (lambda c: c["cifnet"]["model"].pop("images"), "images"),
    (lambda c: c["cifnet"].update(under_way=True), "middle of a task"),
    (lambda c: c["cifnet"].update(model=None), "of a trained method"),
    (lambda c: c["cifnet"].update(format=99), "has format '99'"),
    (lambda c: c["state_dict"].update(x=1), "damaged"),
]


@pytest.mark.parametrize(("change", "reason"), CHECKPOINTS)
def test_checkpoints_that_do_not_fit(change, reason, run, tmp_path):
    with pytest.raises(CheckpointError, match=reason):
        load(rewritten(run, tmp_path / "c.ckpt", change))


def test_a_checkpoint_in_the_current_folder_is_a_model(run, cwd):
    """A path without a folder has no two folders above it."""
    shutil.copy(run / "checkpoints" / "last.ckpt", cwd / "alone.ckpt")
    assert load("alone.ckpt").class_names == load(run).class_names


def test_code_in_a_checkpoint_is_never_run(run: Path, tmp_path: Path):
    mark = tmp_path / "executed"
    target = rewritten(
        run, tmp_path / "c.ckpt", lambda c: c.update(evil=models.Payload(mark))
    )
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        load(target)
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(models.Payload(mark)))
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        load(tmp_path / "plain.ckpt")
    assert fit(tmp_path, *BUFFER, "--ckpt_path", str(target)) == 1
    assert not mark.exists()
