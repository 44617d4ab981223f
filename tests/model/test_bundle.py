"""A bundle: the same scores after a round trip, never half of one, and a description that is
checked strictly.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import cifnet_pl
from cifnet_pl.model.bundle import CONFIG
from cifnet_pl.model.store import load_bundle
from cifnet_pl.utilities.errors import (
    AlreadyThere,
    CheckpointError,
    DataError,
    UsageError,
)
from tests.models import MAKERS, WIDTH, learn_task, learned


@pytest.mark.parametrize("head", MAKERS)
def test_round_trip_is_bit_identical_and_goes_on_learning(head: str, tmp_path: Path):
    model = learned(head)
    model.save(tmp_path / "b")
    again = cifnet_pl.load(tmp_path / "b", device="cpu")
    z = torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(3))
    assert torch.equal(again.head(z), model.head(z))
    assert again.describe() == model.describe()
    assert again.tasks == model.tasks
    assert again.counts == model.counts
    ours = model.tensors()
    theirs = again.tensors()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    for either in (model, again):
        learn_task(either, ["gnu"])
    assert torch.equal(again.head(z), model.head(z))


def test_a_bundle_of_format_2_as_it_was_written_gives_the_scores_it_gave():
    """The files are stored beside this test: a change of what is read or of the scores needs
    another format.
    """
    model = load_bundle(Path(__file__).parent / "format_2")
    gave = json.loads((Path(__file__).parent / "format_2_scores.json").read_text())
    z = torch.tensor(gave["embeddings"])
    torch.testing.assert_close(
        model.head(z).tolist(), gave["scores"], rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(
        model.head.probabilities(z).tolist(),
        gave["probabilities"],
        rtol=1e-9,
        atol=1e-9,
    )
    assert model.tasks == [["ant", "bee"], ["cat"], ["dog", "elk", "fox"]]
    assert set(model.counts.values()) == {7}
    assert model.held_out == (0.2, 0)
    assert model.history[-1].class_names == ["dog", "elk", "fox"]


def test_content_decides_the_file(tmp_path: Path):
    for name in ("a", "b"):
        learned().save(tmp_path / name)
    assert (tmp_path / "a" / CONFIG).read_bytes() == (
        tmp_path / "b" / CONFIG
    ).read_bytes()
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == sorted(
        p.name for p in (tmp_path / "b").iterdir()
    )


def test_existing_bundles_are_kept_unless_asked(tmp_path: Path):
    learned("ridge").save(tmp_path / "b")
    with pytest.raises(UsageError, match="--overwrite true"):
        learned("ncm").save(tmp_path / "b")
    assert type(load_bundle(tmp_path / "b").head).__name__ == "RidgeHead"
    learned("ncm").save(tmp_path / "b", overwrite=True)
    assert type(load_bundle(tmp_path / "b").head).__name__ == "NCMHead"
    assert len(list((tmp_path / "b").iterdir())) == 2  # the old tensors are gone


def test_foreign_folders_are_never_overwritten(tmp_path: Path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").touch()
    with pytest.raises(UsageError, match="other files"):
        learned().save(tmp_path / "images", overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        learned().save(tmp_path / "file", overwrite=True)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.jpg", "file", "images"]


@pytest.mark.parametrize("name", ["../up", "/root", "a\nb", "a\x1b[31m", "", "a//b"])
def test_names_that_are_no_names_are_not_stored(name: str, tmp_path: Path):
    with pytest.raises(DataError, match="class name"):
        learned(tasks=[["ant", name]]).save(tmp_path / "b")
    assert not (tmp_path / "b").exists()


def cut_tensors(bundle: Path) -> None:
    (tensors,) = bundle.glob("tensors-*")
    tensors.write_bytes(tensors.read_bytes()[:-1])


def flip_bit(bundle: Path) -> None:
    (tensors,) = bundle.glob("tensors-*")
    content = tensors.read_bytes()
    tensors.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def remove_tensors(bundle: Path) -> None:
    (tensors,) = bundle.glob("tensors-*")
    tensors.unlink()


def remove_config(bundle: Path) -> None:
    (bundle / CONFIG).unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut_tensors, "checksum is wrong"),
        (flip_bit, "checksum is wrong"),
        (remove_tensors, "not whole"),
        (remove_config, "not a bundle"),
    ],
)
def test_damaged_bundles_are_refused(
    damage: Callable[[Path], None], reason: str, tmp_path: Path
):
    learned().save(tmp_path / "b")
    damage(tmp_path / "b")
    with pytest.raises(CheckpointError, match=reason):
        load_bundle(tmp_path / "b")


@pytest.mark.parametrize("pattern", ["config.json", "tensors-*"])
def test_pointers_of_git_lfs_are_named(pattern: str, tmp_path: Path):
    learned().save(tmp_path / "b")
    (file,) = (tmp_path / "b").glob(pattern)
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:17\n")
    with pytest.raises(CheckpointError, match=f"{file.name}: .*git lfs pull"):
        cifnet_pl.load(tmp_path / "b")


def test_the_same_model_is_there_already(tmp_path: Path):
    learned().save(tmp_path / "b")
    with pytest.raises(AlreadyThere) as caught:
        learned().save(tmp_path / "b")
    assert caught.value.exit_code == 0
    renamed = learned()
    renamed.class_names[0] = "other"
    with pytest.raises(UsageError, match="holds a bundle already"):
        renamed.save(tmp_path / "b")
