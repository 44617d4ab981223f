"""Sums of shards: the same bits whoever makes them and in whatever order they come, and each sample
once.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.cli.merge import reduce_sums
from cifnet_pl.cli.sums import learner_of, make
from cifnet_pl.data.sources import tar_shards
from cifnet_pl.data.sources.tar_shards import read_shard
from cifnet_pl.heads import HEADS as REGISTERED
from cifnet_pl.model.partial_sums import Shard, read_header, read_sums, write_sums
from cifnet_pl.utilities.errors import (
    CheckpointError,
    CifnetError,
    DataError,
    UsageError,
)
from tests.cli.test_option_errors import one_sentence
from tests.command_line import assert_ends, make_images, run_cifnet
from tests.data.layouts import encoded
from tests.data.test_tar_shards import write
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


# ---------------------------------------------------------------------- as one fit


@pytest.mark.parametrize("config", ["heads/ridge", "folder"])
def test_the_model_of_one_fit(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """All that is stored: the draw of the buffer, its calibration, λ, the decision rule, and the
    number of product features, which depends on the counts of all parts.
    """
    draw = np.random.default_rng(3)
    labels = np.concatenate([np.repeat(np.arange(5), 10), draw.integers(0, 5, 1500)])
    z = draw.normal(size=(5, 16))[labels] + draw.normal(size=(len(labels), 16))
    split = np.repeat(["test", "train"], [50, 1500])
    file = tmp_path / "vectors.npz"
    np.savez(file, embeddings=z.astype(np.float32), labels=labels, split=split)
    data = f"--data.source embeddings --data.root {file}"
    sums = f"sums --config {config} --shard 2/3 1/3 3/3 --output {tmp_path}/s {data}"
    assert main(sums.split()) == 0
    assert "learned 500 of 500 samples" in capsys.readouterr().out
    parts = merged(tmp_path / "m", tmp_path / "s")
    assert "learned 1,500 of 1,500 samples" in capsys.readouterr().out
    options = f"--model.backbone none:16 --data.classes_per_task 5 --logs {tmp_path}"
    fit = (
        f"fit --config {config} {data} {options} --experiment e --energy.enabled false"
    )
    assert main(fit.split()) == 0
    whole = cifnet_pl.load(tmp_path / "e")
    expected = whole.tensors()
    for name, tensor in parts.tensors().items():
        # The search for the weights of two rules stops within 1e-5 of them.
        is_of_rule = config == "folder" and name in (
            "head.rule_weights",
            "head.weights",
            "head.odds_power",
        )
        tolerance = 1e-4 if is_of_rule else 1e-9
        torch.testing.assert_close(
            tensor, expected[name], rtol=tolerance, atol=tolerance, msg=name
        )
    assert parts.class_names == whole.class_names
    assert parts.calibration.describe() == whole.calibration.describe()
    assert parts.head.settings() == whole.head.settings()


# ---------------------------------------------------------------------- each sample once


def test_nothing_is_held_out(vectors: Path, tmp_path: Path):
    """Also where a run would hold a fifth out: data without a test split."""
    stored = np.load(vectors)
    columns = {name: stored[name] for name in ("embeddings", "labels")}
    np.savez(tmp_path / "vectors.npz", **columns)
    make(tmp_path, [Shard(1, 1)], options(tmp_path / "vectors.npz"))
    part = read_sums(tmp_path / "shard-1-of-1.sums")
    assert sum(part.model.counts.values()) == len(stored["labels"])


def test_a_part_that_says_otherwise_is_refused(shards: list[Path], tmp_path: Path):
    for learned, sentence in ((None, "earlier version"), (7, "not as many as it says")):
        part = read_sums(shards[0])
        part.shards[0].learned = learned
        write_sums(part, tmp_path / "part.sums")
        with pytest.raises(CheckpointError, match=sentence):
            reduce_sums([tmp_path / "part.sums", *shards[1:]])


def test_parts_read_their_own_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Uneven tar files, of which the last is of the test split: each sample is in one part, and a
    part opens no other tar files than its own.
    """
    first = 0
    for name, count in (("train-a", 3), ("train-b", 9), ("train-c", 4), ("val-a", 2)):
        samples = []
        for i in range(first, first + count):
            image = encoded((9 * i, 9, 9), i)
            samples.append((f"s{i}", {"png": image, "cls": str(i % 2).encode()}))
        write(tmp_path / "data" / f"{name}.tar", samples)
        first += count
    given = (
        f"--data.source webdataset --data.root {tmp_path / 'data'} --data.num_workers 0"
        " --model.backbone pixels:4"
    )
    make(tmp_path, [Shard(1, 4)], given.split())
    opened: list[str] = []

    def spy(shard: Path, **options: Any) -> Any:
        opened.append(shard.stem)
        return read_shard(shard, **options)

    monkeypatch.setattr(tar_shards, "read_shard", spy)
    expected = [["train-b"], ["train-b"], ["train-c"]]
    for index, names in zip((2, 3, 4), expected, strict=True):
        learner_of.cache_clear()
        make(tmp_path, [Shard(index, 4)], given.split())
        assert opened == names
        opened.clear()
    total = reduce_sums(sorted(tmp_path.glob("*.sums")))
    assert total.model.counts == {"0": 8, "1": 8}


def test_row_groups(vectors: Path, tmp_path: Path):
    """Of Parquet, and the array of the same embeddings: the same sums."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    stored = np.load(vectors)
    columns = {name: stored[name].tolist() for name in stored.files}
    file = tmp_path / "vectors.parquet"
    table = pyarrow.table(columns)
    field = pyarrow.field("embeddings", pyarrow.list_(pyarrow.float32()))
    embeddings = pyarrow.array(columns["embeddings"], field.type)
    table = table.set_column(0, field, embeddings)
    parquet.write_table(table, file, row_group_size=40)
    for name, source in (("p", file), ("n", vectors)):
        parts = [Shard(i, 3) for i in (1, 2, 3)]
        make(tmp_path / name, parts, options(source))
    in_parquet = reduce_sums(sorted(tmp_path.glob("p/*.sums"))).solved()
    in_array = reduce_sums(sorted(tmp_path.glob("n/*.sums"))).solved()
    assert in_parquet.images.content.equal(in_array.images.content)
    torch.testing.assert_close(
        in_parquet.head.weights, in_array.head.weights, rtol=1e-9, atol=1e-9
    )


def test_a_folder_is_for_one_set(vectors: Path, tmp_path: Path):
    file = tmp_path / "vectors.npz"
    shutil.copy(vectors, file)
    make(tmp_path, [Shard(1, 2)], options(file))
    with pytest.raises(UsageError, match="sums of other data"):
        make(tmp_path, [Shard(2, 2)], options(vectors))
    stored = dict(np.load(vectors))
    stored["labels"] = stored["labels"][::-1]
    np.savez(file, **stored)
    learner_of.cache_clear()
    with pytest.raises(DataError, match="has changed since it was planned"):
        make(tmp_path, [Shard(2, 2)], options(file))


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
        (["--shard", "1/2", "--data.tune", "0.2"], "--data.tune does not fit to sums"),
        (
            [
                "--shard",
                "1/2",
                "--config",
                "folder",
                "--model.buffer.strategy",
                "herding",
            ],
            "buffer strategy herding",
        ),
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
