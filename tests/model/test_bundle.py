"""A bundle: the same scores after a round trip, never half of one, and a description that is
checked strictly.
"""

import json
import shutil
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
from tests.models import MAKERS, WIDTH, learn_task, learned, tensors_equal

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:17\n"


@pytest.mark.parametrize("head", MAKERS)
def test_round_trip_is_bit_identical_and_goes_on_learning(head: str, tmp_path: Path):
    model = learned(head, [["ant", "bee"], ["cat"]])
    model.save(tmp_path / "b")
    again = cifnet_pl.load(tmp_path / "b", device="cpu")
    z = torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(3))
    assert torch.equal(again.head(z), model.head(z))
    assert again.describe() == model.describe()
    assert again.tasks == model.tasks
    assert again.counts == model.counts
    assert tensors_equal(again.tensors(), model.tensors())
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
    """The same model may be saved again; another one takes the place only of a bundle, and only
    where that is asked for.
    """
    bundle = tmp_path / "b"
    learned("ridge").save(bundle)
    learned("ridge").save(tmp_path / "same")
    files = {path.name: path.read_bytes() for path in bundle.iterdir()}
    assert files == {
        path.name: path.read_bytes() for path in (tmp_path / "same").iterdir()
    }
    with pytest.raises(AlreadyThere) as caught:
        learned("ridge").save(bundle)
    assert caught.value.exit_code == 0
    renamed = learned("ridge")
    renamed.class_names[0] = "other"
    for other in (renamed, learned("ncm")):
        with pytest.raises(UsageError, match="--overwrite true"):
            other.save(bundle)
    assert type(load_bundle(bundle).head).__name__ == "RidgeHead"
    learned("ncm").save(bundle, overwrite=True)
    assert type(load_bundle(bundle).head).__name__ == "NCMHead"
    assert len(list(bundle.iterdir())) == 2  # the old tensors are gone


def test_foreign_folders_are_never_overwritten(tmp_path: Path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").touch()
    with pytest.raises(UsageError, match="other files"):
        learned().save(tmp_path / "images", overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        learned().save(tmp_path / "file", overwrite=True)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.jpg", "file", "images"]


@pytest.mark.parametrize("name", ["../up", "a\nb", ""])
def test_names_that_are_no_names_are_not_stored(name: str, tmp_path: Path):
    with pytest.raises(DataError, match="class name"):
        learned(tasks=[["ant", name]]).save(tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that nobody changes."""
    folder = tmp_path_factory.mktemp("bundle") / "b"
    learned("ridge").save(folder)
    return folder


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
def test_damaged_bundles_are_refused(pattern, change, reason, bundle, tmp_path):
    damaged = Path(shutil.copytree(bundle, tmp_path / "b"))
    (file,) = damaged.glob(pattern)
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(file.read_bytes()))
    with pytest.raises(CheckpointError, match=reason):
        load_bundle(damaged)
