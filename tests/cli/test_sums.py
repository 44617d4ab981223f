"""Sums of shards: the same bits whoever makes them and in whatever order they come, and each sample
once.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.cli.merge import reduce_sums
from cifnet_pl.cli.sums import make
from cifnet_pl.heads import HEADS as REGISTERED
from cifnet_pl.model.partial_sums import Shard, read_header, read_sums
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError
from tests.cli.test_option_errors import one_sentence
from tests.command_line import assert_ends, make_images, run_cifnet
from tests.heads.suite import QUICK, TOLERANCES
from tests.models import tensors_equal

SHARDS = 5


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embeddings of 7 classes, 30 to 60 samples each, in no order, and some to test with."""
    draw = np.random.default_rng(0)
    trained = draw.permutation(np.repeat(np.arange(7), draw.integers(30, 60, 7)))
    labels = np.concatenate([np.arange(14) % 7, trained])
    centres = draw.normal(size=(7, 12))
    z = centres[labels] + draw.normal(size=(len(labels), 12))
    path = tmp_path_factory.mktemp("vectors") / "vectors.npz"
    split = np.repeat(["test", "train"], [14, len(trained)])
    np.savez(path, embeddings=z.astype(np.float32), labels=labels, split=split)
    return path


def options(vectors: Path, *more: str) -> list[str]:
    return ["--data.source", "embeddings", "--data.root", str(vectors), *more]


@pytest.fixture(scope="module")
def shards(vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("shards")
    make(folder, [Shard(i, SHARDS) for i in range(1, SHARDS + 1)], options(vectors))
    return sorted(folder.glob("*.sums"))


def merged(folder: Path, *files: Path | str) -> cifnet_pl.Classifier:
    assert main(["merge", *map(str, files), "--output", str(folder)]) == 0
    return cifnet_pl.load(folder)


@pytest.mark.parametrize("head", REGISTERED)
def test_every_head_whose_statistics_are_sums(head: str, vectors: Path, tmp_path: Path):
    """Parts in any order against one fit; heads of which a part is not a sum are refused before
    anything is read.
    """
    arguments = QUICK.get(head, {})
    given = options(
        vectors,
        "--model.head",
        head,
        *(f"--model.head.{key}={value}" for key, value in arguments.items()),
    )
    parts = [Shard(i, 3) for i in (2, 1, 3)]
    if not REGISTERED[head](12, **arguments).merges_sites:
        with pytest.raises(CifnetError, match=head):
            make(tmp_path / "sums", parts, given)
        assert not list(tmp_path.glob("sums/*.sums"))
        return
    make(tmp_path / "sums", parts, given)
    paths = sorted((tmp_path / "sums").glob("*.sums"))
    model = reduce_sums(paths).solved()
    again = reduce_sums(paths[::-1]).solved()
    assert tensors_equal(model.tensors(), again.tensors())
    with pytest.raises(UsageError, match="would count twice"):
        reduce_sums([*paths, paths[1]])
    fast = f"--energy.enabled false --logs {tmp_path} --data.classes_per_task 7"
    assert main(["fit", *given, "--data.batch_size", "4096", *fast.split()]) == 0
    other = cifnet_pl.load(tmp_path / "default")
    assert model.counts == other.counts
    z = torch.randn(50, 12, generator=torch.Generator().manual_seed(0))
    columns = [other.class_names.index(name) for name in model.class_names]
    tolerance = TOLERANCES.get(head, 1e-9)
    torch.testing.assert_close(
        model.head(z), other.head(z)[:, columns], rtol=tolerance, atol=tolerance
    )


def test_a_tree_of_sums(
    shards: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    left = tmp_path / "left.sums"
    right = tmp_path / "right.sums"
    assert_ends(
        main(["merge", *map(str, shards[:2]), "--output", str(left)]),
        0,
        "1 part missing",
        capsys,
    )
    assert main(["merge", *map(str, shards[2:]), "--output", str(right)]) == 0
    z = torch.randn(50, 12, generator=torch.Generator().manual_seed(0))
    tree = merged(tmp_path / "tree", left, right)
    line = merged(tmp_path / "line", *shards)
    assert tree.counts == line.counts
    torch.testing.assert_close(tree.head(z), line.head(z), rtol=1e-9, atol=1e-9)


def test_images_are_embedded(tmp_path: Path):
    """All of them: there is no score for which some would be held out."""
    images = make_images(tmp_path / "images", ["ant", "bee", "cat"], 9)
    shutil.copy(images / "ant" / "0.png", images / "loose.png")
    given = f"--data.root {images} --model.backbone pixels:8 --data.num_workers 0"
    for i in (1, 2):
        line = f"sums --shard {i}/2 --output {tmp_path}/s {given}"
        assert main(line.split()) == 0
    model = merged(tmp_path / "m", tmp_path / "s")
    assert model.counts == {"ant": 9, "bee": 9, "cat": 9}
    (images / "loose.png").unlink()
    found = [prediction.classes[0] for prediction in model.classify(str(images))]
    assert found == sorted(found)
    result = cifnet_pl.extend(model, make_images(tmp_path / "more", ["dog"], 9))
    assert result.model.class_names == ["ant", "bee", "cat", "dog"]


# ---------------------------------------------------------------------- each sample once


def test_copies_and_images_in_two_classes_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Whatever the shard in which they lie; as a run leaves them out."""
    images = make_images(tmp_path / "images" / "train", ["ant", "bee"], 6)
    make_images(tmp_path / "images" / "val", ["ant", "bee"], 2)
    shutil.copy(images / "ant" / "5.png", images / "ant" / "0 copy.png")
    shutil.copy(images / "bee" / "3.png", images / "ant" / "wrong.png")
    given = (
        f"--data.root {images.parent} --model.backbone pixels:8 --data.num_workers 0"
    )
    for i in (1, 2, 3):
        line = f"sums --shard {i}/3 --output {tmp_path}/s {given}"
        assert main(line.split()) == 0
    assert "ant/wrong.png (also in bee)" in capsys.readouterr().out
    assert merged(tmp_path / "m", tmp_path / "s").counts == {"ant": 6, "bee": 5}


def test_overlapping_shards_are_refused(
    vectors: Path, shards: list[Path], tmp_path: Path
):
    make(tmp_path, [Shard(1, 2)], options(vectors))
    with pytest.raises(UsageError, match="which would count twice"):
        reduce_sums([tmp_path / "shard-1-of-2.sums", shards[1]])
    reduce_sums(
        [tmp_path / "shard-1-of-2.sums", shards[4]]
    )  # 2 and 5 of different cuts do not overlap


def test_another_set_with_the_same_samples_is_refused(
    vectors: Path, shards: list[Path], tmp_path: Path
):
    """A part of the same vectors in another file, so that positions say nothing."""
    stored = np.load(vectors)
    np.savez(
        tmp_path / "part.npz",
        embeddings=stored["embeddings"][14:94],
        labels=stored["labels"][14:94],
    )
    make(tmp_path, [Shard(1, 1)], options(tmp_path / "part.npz"))
    with pytest.raises(UsageError, match=r"have \d+ samples in common"):
        reduce_sums([*shards, tmp_path / "shard-1-of-1.sums"])
    np.savez(
        tmp_path / "other.npz",
        embeddings=stored["embeddings"] + 1,
        labels=stored["labels"],
        split=stored["split"],
    )
    make(tmp_path / "o", [Shard(1, 1)], options(tmp_path / "other.npz"))
    both = reduce_sums([*shards, tmp_path / "o" / "shard-1-of-1.sums"])
    assert sum(both.model.counts.values()) == 2 * sum(
        reduce_sums(shards).model.counts.values()
    )


def test_missing_shards_are_named(
    shards: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["merge", *map(str, shards[1:4]), "--output", str(tmp_path / "m")]) == 2
    first = read_header(shards[0]).shards[0]
    last = read_header(shards[4]).shards[0]
    total = first.total
    said = capsys.readouterr().err
    assert (
        f"samples 0 to {first.stop - 1} of {total}, samples {last.start} to {total - 1} of"
        f" {total} are" in said
    )
    assert not (tmp_path / "m").exists()


def test_finished_shards_are_skipped_and_damaged_ones_made_again(
    vectors: Path, tmp_path: Path
):
    one = [Shard(1, 3)]
    assert "samples" in make(tmp_path, one, options(vectors))[0]
    path = tmp_path / "shard-1-of-3.sums"
    content = path.read_bytes()
    assert make(tmp_path, one, options(vectors)) == ["shard-1-of-3 is finished already"]
    path.write_bytes(content[: len(content) // 2])
    assert "samples" in make(tmp_path, one, options(vectors))[0]
    assert path.read_bytes() == content


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--shard", "6/5"], "--shard is '6/5'"),
        ([], "give either --shard"),
        (["--shard", "1/9999"], "cannot be cut into 9999 shards"),
        (["--shard", "1/2", "--model.head", "CIFNetHead"], "CIFNetHead"),
        (["--shard", "1/2", "--data.sorce", "x"], "unknown option"),
    ],
)
def test_what_does_not_fit_is_one_sentence(words, sentence, vectors, tmp_path, capsys):
    unsupported = "CIFNetHead" in words
    assert main(["sums", "--output", str(tmp_path), *words, *options(vectors)]) == (
        1 if unsupported else 2
    )
    assert sentence in one_sentence(capsys)


def test_a_model_is_not_merged_with_sums(
    shards: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    merged(tmp_path / "m", *shards)
    assert (
        run_cifnet("merge", str(shards[0]), str(tmp_path / "m"), output=tmp_path / "o")
        == 2
    )
    assert "is no file of sums" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["cut", "flipped", "nothing"])
def test_a_damaged_file_is_refused(change: str, shards: list[Path], tmp_path: Path):
    path = tmp_path / "d.sums"
    content = bytearray(shards[0].read_bytes())
    if change == "cut":
        path.write_bytes(content[:-100])
    elif change == "flipped":
        content[-10] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(save({"x": torch.zeros(1)}))
    with pytest.raises(CheckpointError):
        read_sums(path)
