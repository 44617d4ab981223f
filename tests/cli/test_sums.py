"""Sums of shards: the same bits whoever makes them and in whatever order they come, and each sample
once.
"""

import io
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.cli.sums import learner_of
from cifnet_pl.cli.sums import make as make_shard
from cifnet_pl.heads import HEADS as REGISTERED
from cifnet_pl.model.partial_sums import add_up, read_header, read_sums, write_sums
from cifnet_pl.model.partition import Shard
from cifnet_pl.utilities.errors import (
    CheckpointError,
    CifnetError,
    DataError,
    UsageError,
)
from tests.cli.test_option_errors import one_sentence
from tests.command_line import assert_ends, make_images, run_cifnet
from tests.data.test_tar_shards import write
from tests.heads.suite import QUICK, TOLERANCES
from tests.models import tensors_equal

SHARDS = 5


def make(folder: Path, shards: list[Shard], words: list[str]) -> list[str]:
    return [make_shard(folder, tuple(words), 1, shard) for shard in shards]


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
    if not REGISTERED[head](12, **arguments).merges:
        with pytest.raises(CifnetError, match=head):
            make(tmp_path / "sums", parts, given)
        assert not list(tmp_path.glob("sums/*.sums"))
        return
    make(tmp_path / "sums", parts, given)
    paths = sorted((tmp_path / "sums").glob("*.sums"))
    model = add_up(paths).solved()
    again = add_up(paths[::-1]).solved()
    assert tensors_equal(model.tensors(), again.tensors())
    with pytest.raises(UsageError, match="would count twice"):
        add_up([*paths, paths[1]])
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
    """Parts of parts give the same; what is missing is named; a model is no part."""
    middle = tmp_path / "middle.sums"
    code = main(["merge", *map(str, shards[1:4]), "--output", str(middle)])
    assert_ends(code, 0, "2 parts missing", capsys)
    assert main(["merge", *map(str, shards[1:4]), "--output", str(middle)]) == 0
    assert "already there" in capsys.readouterr().err
    code = main(["merge", *map(str, shards[:3]), "--output", str(middle)])
    assert_ends(code, 2, "exists already", capsys)
    first = read_header(shards[0]).shards[0]
    last = read_header(shards[4]).shards[0]
    total = first.total
    assert main(["merge", str(middle), "--output", str(tmp_path / "m")]) == 2
    assert (
        f"samples 0 to {first.stop - 1} of {total}, samples {last.start} to {total - 1} of"
        f" {total} are" in capsys.readouterr().err
    )
    assert not (tmp_path / "m").exists()
    z = torch.randn(50, 12, generator=torch.Generator().manual_seed(0))
    tree = merged(tmp_path / "tree", middle, shards[4], shards[0])
    line = merged(tmp_path / "line", *shards)
    assert tree.counts == line.counts
    torch.testing.assert_close(tree.head(z), line.head(z), rtol=1e-9, atol=1e-9)
    assert main(["merge", *map(str, shards), "--output", str(tmp_path / "line")]) == 0
    assert "already there" in capsys.readouterr().err
    both = [str(middle), str(tmp_path / "tree")]
    assert_ends(
        run_cifnet("merge", *both, output=tmp_path / "o"),
        2,
        "is no file of sums",
        capsys,
    )


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
        torch.testing.assert_close(
            tensor, expected[name], rtol=1e-9, atol=1e-9, msg=name
        )
    assert parts.class_names == whole.class_names
    assert parts.calibration.describe() == whole.calibration.describe()
    assert parts.head.settings() == whole.head.settings()


# ---------------------------------------------------------------------- each sample once


def test_a_part_that_says_otherwise_is_refused(shards: list[Path], tmp_path: Path):
    part = read_sums(shards[0])
    part.shards[0].learned = 7
    write_sums(part, tmp_path / "part.sums")
    with pytest.raises(CheckpointError, match="not as many as it says"):
        add_up([tmp_path / "part.sums", *shards[1:]])


def noise(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (64, 64, 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "png")
    return content.getvalue()


def tar(path: Path, numbers: range) -> None:
    samples = []
    for i in numbers:
        samples.append((f"s{i}", {"png": noise(i), "cls": str(i % 2).encode()}))
    write(path, samples)


def test_uneven_tar_files(tmp_path: Path):
    """Each sample is in one part, and none of those of the test split."""
    first = 0
    for name, count in (("train-a", 3), ("train-b", 9), ("train-c", 4), ("val-a", 2)):
        tar(tmp_path / "data" / f"{name}.tar", range(first, first + count))
        first += count
    given = (
        f"--data.source webdataset --data.root {tmp_path / 'data'} --data.num_workers 0"
        " --model.backbone pixels:4"
    )
    make(tmp_path, [Shard(i, 4) for i in (1, 2, 3, 4)], given.split())
    total = add_up(sorted(tmp_path.glob("*.sums")))
    assert total.model.counts == {"0": 8, "1": 8}


def bytes_read() -> int:
    """Bytes that this process has read so far, by the system."""
    counts = Path("/proc/self/io").read_text().split()
    return int(counts[counts.index("rchar:") + 1])


def embeddings(path: Path, group: int) -> None:
    """64 row groups of Parquet."""
    pytest.importorskip("pyarrow")
    draw = np.random.default_rng(0)
    z = draw.normal(size=(64 * group, 512)).astype(np.float32)
    table = {"embeddings": list(z), "labels": draw.integers(0, 3, len(z))}
    pd.DataFrame(table).to_parquet(path, row_group_size=group)


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts them")
@pytest.mark.parametrize("source", ["folder", "webdataset", "embeddings"])
def test_a_part_reads_little_more_than_its_share(source: str, tmp_path: Path):
    """At most a 32nd of the whole by part 1/64, and the plan."""
    data = tmp_path / "data"
    if source == "embeddings":
        data = data.with_suffix(".parquet")
        embeddings(data, 100)
        files = [data]
    elif source == "folder":
        make_images(data, ["ant", "bee"], 320)
        files = list(data.glob("*/*"))
    else:
        for number in range(64):
            tar(data / f"{number:02}.tar", range(10 * number, 10 * number + 10))
        files = list(data.iterdir())
    given = f"--data.source {source} --data.root {data} --data.num_workers 0"
    if source != "embeddings":
        given += " --model.backbone pixels:4"
    make(tmp_path, [Shard(1, 64)], given.split())
    learner_of.cache_clear()
    before = bytes_read()
    make(tmp_path, [Shard(7, 64)], given.split())
    plan = (tmp_path / "plan.json").stat().st_size
    whole = sum(file.stat().st_size for file in files)
    assert bytes_read() - before <= whole / 32 + 4 * plan


def test_row_groups(vectors: Path, tmp_path: Path):
    """Of Parquet, and the array of the same embeddings: the same sums."""
    pytest.importorskip("pyarrow")
    stored = np.load(vectors)
    columns = {name: list(stored[name]) for name in stored.files}
    file = tmp_path / "vectors.parquet"
    pd.DataFrame(columns).to_parquet(file, row_group_size=40)
    models = []
    for name, source in (("p", file), ("n", vectors)):
        make(tmp_path / name, [Shard(i, 3) for i in (1, 2, 3)], options(source))
        models.append(add_up(sorted(tmp_path.glob(f"{name}/*.sums"))).solved())
    in_parquet, in_array = models
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


def test_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """All are learned but copies and images in two classes, whatever the shard in which they lie;
    what is merged goes on learning.
    """
    images = make_images(tmp_path / "images", ["ant", "bee"], 6)
    shutil.copy(images / "ant" / "5.png", images / "ant" / "0 copy.png")
    shutil.copy(images / "bee" / "3.png", images / "ant" / "wrong.png")
    given = f"--data.root {images} --model.backbone pixels:8 --data.num_workers 0"
    line = f"sums --shard 1/3 3/3 2/3 --output {tmp_path}/s {given}"
    assert main(line.split()) == 0
    assert "ant/wrong.png (also in bee)" in capsys.readouterr().out
    model = merged(tmp_path / "m", tmp_path / "s")
    assert model.counts == {"ant": 6, "bee": 5}
    found = [
        prediction.classes[0] for prediction in model.classify(str(images / "bee"))
    ]
    assert found == ["bee"] * 6
    result = cifnet_pl.extend(model, make_images(tmp_path / "more", ["dog"], 9))
    assert result.model.class_names == ["ant", "bee", "dog"]


def test_overlapping_shards_are_refused(
    vectors: Path, shards: list[Path], tmp_path: Path
):
    make(tmp_path, [Shard(1, 2)], options(vectors))
    with pytest.raises(UsageError, match="which would count twice"):
        add_up([tmp_path / "shard-1-of-2.sums", shards[1]])
    # 1/2 and 5/5 do not overlap.
    add_up([tmp_path / "shard-1-of-2.sums", shards[4]])


def test_another_set_with_the_same_samples_is_refused(
    vectors: Path, shards: list[Path], tmp_path: Path
):
    """A part of the same vectors in another file, so that positions say nothing; without a test
    split, all of them are learned.
    """
    stored = dict(np.load(vectors))
    part = {name: column[14:94] for name, column in stored.items() if name != "split"}
    np.savez(tmp_path / "part.npz", **part)
    make(tmp_path, [Shard(1, 1)], options(tmp_path / "part.npz"))
    with pytest.raises(UsageError, match=r"have 80 samples in common"):
        add_up([*shards, tmp_path / "shard-1-of-1.sums"])
    stored["embeddings"] += 1
    np.savez(tmp_path / "other.npz", **stored)
    make(tmp_path / "o", [Shard(1, 1)], options(tmp_path / "other.npz"))
    both = add_up([*shards, tmp_path / "o" / "shard-1-of-1.sums"])
    alone = add_up(shards)
    assert sum(both.model.counts.values()) == 2 * sum(alone.model.counts.values())


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
