"""Sums of shards: the same bits by whomever and in whatever order, and each sample once."""

import json
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
from cifnet_pl.backbones import build_backbone
from cifnet_pl.cli.sums import configured, learner_of, make, set_of, words_of
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.heads import HEADS as REGISTERED
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.partial_sums import ShardLearner, add_up, content_of, read_header
from cifnet_pl.model.partition import Shard, TrainingSet
from cifnet_pl.utilities.errors import (
    CheckpointError,
    DataError,
    UnsupportedError,
    UsageError,
)
from tests.cli.test_option_errors import one_sentence
from tests.command_line import assert_ends, make_images, run_cifnet
from tests.data.test_tar_shards import write
from tests.heads.suite import QUICK, normal, teach
from tests.images.contents import file_of
from tests.models import tensors_equal

TRAINED = slice(14, None)
"""Rows of the vectors behind those of the test split."""


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


def learner(root, source="embeddings", head="RidgeHead"):
    """What computes the sums of embeddings of 12 numbers, or of images by their pixels."""
    backbone = build_backbone("none:12" if source == "embeddings" else "pixels:4")
    made = REGISTERED[head](backbone.features, **QUICK.get(head, {}))
    training_set = TrainingSet(source, SourceOptions(root, val_fraction=0.0))
    return ShardLearner(training_set, Classifier(backbone, made))


def write_parts(made, folder, count, indices=()):
    """Write the sums of some of ``count`` parts, by default of all; their files."""
    folder.mkdir(exist_ok=True)
    plan, _ = made.training_set.plan({})
    paths = []
    for i in indices or range(1, count + 1):
        paths.append(folder / f"{i}-of-{count}.sums")
        paths[-1].write_bytes(content_of(made.sums(plan, Shard(i, count))))
    return paths


@pytest.fixture(scope="module")
def shards(vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_parts(learner(vectors), tmp_path_factory.mktemp("shards"), 5)


def options(vectors: Path) -> tuple[str, ...]:
    return ("--data.source", "embeddings", "--data.root", str(vectors))


def merged(folder: Path, *files: Path) -> Classifier:
    assert main(["merge", *map(str, files), "--output", str(folder)]) == 0
    return cifnet_pl.load(folder)


@pytest.mark.parametrize("head", REGISTERED)
def test_every_head_whose_statistics_are_sums(head: str, vectors: Path, tmp_path: Path):
    """Parts in any order against the head that learns all at once; other heads are refused."""
    whole = REGISTERED[head](12, **QUICK.get(head, {}))
    if not whole.merges:
        with pytest.raises(UnsupportedError, match=head):
            learner(vectors, head=head)
        return
    paths = write_parts(learner(vectors, head=head), tmp_path, 3)
    model = add_up(paths).solved()
    again = add_up(paths[::-1]).solved()
    assert tensors_equal(model.tensors(), again.tensors())
    stored = np.load(vectors)
    y = torch.from_numpy(stored["labels"][TRAINED])
    teach(whole, torch.from_numpy(stored["embeddings"][TRAINED]), y)
    assert list(model.counts.values()) == y.bincount().tolist()
    tolerance = 1e-9 if whole.dtype == torch.float64 else 1e-4
    z = normal(50, 12)
    torch.testing.assert_close(model.head(z), whole(z), rtol=tolerance, atol=tolerance)


def test_a_tree_of_sums(shards: list[Path], tmp_path: Path, capsys):
    """Parts of parts give the same; what is missing is named; a model is no part."""
    middle = tmp_path / "middle.sums"
    given = {"output": middle}
    inner = [*map(str, shards[1:4])]
    assert_ends(run_cifnet("merge", *inner, **given), 0, "2 parts missing", capsys)
    assert run_cifnet("merge", *inner, **given) == 0
    assert "already there" in capsys.readouterr().err
    code = run_cifnet("merge", *inner[:2], **given)
    assert_ends(code, 2, "exists already", capsys)
    first = read_header(shards[0]).shards[0]
    last = read_header(shards[4]).shards[0]
    total = first.total
    missing = f"samples 0 to {first.stop - 1} of {total}, samples {last.start} to"
    code = run_cifnet("merge", str(middle), output=tmp_path / "m")
    assert_ends(code, 2, f"{missing} {total - 1} of {total} are", capsys)
    assert not (tmp_path / "m").exists()
    tree = merged(tmp_path / "tree", middle, shards[4], shards[0])
    line = merged(tmp_path / "line", *shards)
    assert tree.counts == line.counts
    z = normal(50, 12)
    torch.testing.assert_close(tree.head(z), line.head(z), rtol=1e-9, atol=1e-9)
    merged(tmp_path / "line", *shards)
    assert "already there" in capsys.readouterr().err
    code = run_cifnet(
        "merge", str(middle), str(tmp_path / "tree"), output=tmp_path / "o"
    )
    assert_ends(code, 1, "no file that cifnet sums made", capsys)


def test_the_model_of_one_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """All that is stored: buffer, calibration, λ, decision rule, number of product features."""
    draw = np.random.default_rng(3)
    labels = np.concatenate([np.repeat(np.arange(5), 10), draw.integers(0, 5, 1500)])
    z = draw.normal(size=(5, 16))[labels] + draw.normal(size=(len(labels), 16))
    split = np.repeat(["test", "train"], [50, 1500])
    file = tmp_path / "vectors.npz"
    np.savez(file, embeddings=z.astype(np.float32), labels=labels, split=split)
    common = f"--config folder --data.source embeddings --data.root {file}"
    sums = f"sums --shard 2/3 1/3 3/3 --output {tmp_path}/s {common}"
    assert_ends(main(sums.split()), 0, "learned 500 of 500 samples", capsys)
    parts = merged(tmp_path / "m", tmp_path / "s")
    assert "learned 1,500 of 1,500 samples" in capsys.readouterr().out
    of_fit = f"--data.classes_per_task 5 --logs {tmp_path} --experiment e"
    assert main(f"fit {common} {of_fit} --energy.enabled false".split()) == 0
    whole = cifnet_pl.load(tmp_path / "e")
    both = parts.tensors(), whole.tensors()
    torch.testing.assert_close(*both, rtol=1e-9, atol=1e-9)
    assert parts.class_names == whole.class_names
    assert parts.calibration.describe() == whole.calibration.describe()
    assert parts.head.settings() == whole.head.settings()


def test_the_merge_of_an_own_head_needs_trust(vectors, cwd, monkeypatch, capsys):
    """The last line of all shards, which are made without Ray here."""

    def make_all(make, shards, *_):
        for shard in shards:
            make(shard)
        return []

    monkeypatch.setattr("cifnet_pl.cli.ray.make_with_ray", make_all)
    (cwd / "head_of_sums.py").write_text(
        "from cifnet_pl.heads import RidgeHead\nclass OwnHead(RidgeHead):\n    pass\n"
    )
    for name, trust in (("RidgeHead", ""), ("head_of_sums.OwnHead", " --trust")):
        words = ["sums", "--shards", "2", "--output", name, "--model.head", name]
        assert main([*words, *options(vectors)]) == 0
        line = f"next: cifnet merge {name} --output MODEL{trust}\n"
        assert capsys.readouterr().out.endswith(line)


def test_seeds_of_a_configuration_stay(tmp_path: Path):
    """Those that it gives; others follow ``--seed_everything``, as in ``fit``."""
    file = tmp_path / "seeded.yaml"
    head = "head: {class_path: cifnet_pl.heads.ACILHead, init_args: {seed: 7}}"
    buffer = "buffer: {class_path: cifnet_pl.CalibrationBuffer}"
    args = f"init_args: {{{head}, {buffer}}}"
    file.write_text(f"model: {{class_path: cifnet_pl.CIFNetModule, {args}}}")
    words = words_of(str(file), ["--data.source=digits", "--seed_everything=3"])
    chosen = configured(words).model.init_args
    assert chosen.head.init_args.seed == 7
    assert chosen.buffer.init_args.seed == 3


# ---------------------------------------------------------------------- units of a set


def tars(folder: Path, **counts: int) -> None:
    """Tar files with so many images of noise in two classes each."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for name, count in counts.items():
        samples = []
        for i in range(count):
            pixels = draw.integers(0, 255, (64, 64, 3), np.uint8)
            content = file_of(Image.fromarray(pixels), "PNG")
            label = str(i % 2).encode()
            samples.append((f"{name}{i}", {"png": content, "cls": label}))
        write(folder / f"{name}.tar", samples)


def test_uneven_tar_files(tmp_path: Path):
    """Each sample is in one part, and none of those of the test split."""
    counts = {"train-a": 4, "train-b": 8, "train-c": 4, "val-a": 2}
    tars(tmp_path / "data", **counts)
    made = learner(tmp_path / "data", "webdataset")
    total = add_up(write_parts(made, tmp_path / "sums", 5))
    assert total.model.counts == {"0": 8, "1": 8}


def bytes_read() -> int:
    """Bytes that this process has read so far, by the system."""
    counts = Path("/proc/self/io").read_text().split()
    return int(counts[counts.index("rchar:") + 1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts them")
@pytest.mark.parametrize("source", ["folder", "webdataset", "embeddings"])
def test_a_part_reads_little_more_than_its_share(source: str, tmp_path: Path):
    """At most a 32nd of the whole by part 1/64, and the plan."""
    data = tmp_path / "data"
    if source == "embeddings":
        data = data.with_suffix(".parquet")
        z = np.random.default_rng(0).normal(size=(64 * 80, 512)).astype(np.float32)
        table = {"embeddings": list(z), "labels": np.arange(len(z)) % 3}
        pd.DataFrame(table).to_parquet(data, row_group_size=80)
        files = [data]
    elif source == "folder":
        make_images(data, ["ant", "bee"], 96)
        files = list(data.glob("*/*"))
    else:
        tars(data, **{f"{number:02}": 4 for number in range(64)})
        files = list(data.iterdir())
    given = f"--data.source {source} --data.root {data} --data.num_workers 0"
    if source != "embeddings":
        given += " --model.backbone pixels:4"
    words = tuple(given.split())
    make(tmp_path, words, 1, Shard(1, 64))
    learner_of.cache_clear()
    before = bytes_read()
    make(tmp_path, words, 1, Shard(7, 64))
    plan = (tmp_path / "plan.json").stat().st_size
    whole = sum(file.stat().st_size for file in files)
    assert bytes_read() - before <= whole / 32 + 4 * plan


def test_row_groups(vectors: Path, shards: list[Path], tmp_path: Path):
    """Of Parquet, and the array of the same embeddings: the same sums."""
    stored = np.load(vectors)
    columns = {name: list(stored[name]) for name in stored.files}
    file = tmp_path / "vectors.parquet"
    pd.DataFrame(columns).to_parquet(file, row_group_size=40)
    in_parquet = add_up(write_parts(learner(file), tmp_path / "p", 3)).solved()
    in_array = add_up(shards).solved()
    assert in_parquet.images.content.equal(in_array.images.content)
    torch.testing.assert_close(
        in_parquet.head.weights, in_array.head.weights, rtol=1e-9, atol=1e-9
    )


def test_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """All but copies and images in two classes, in any shard; the merged model goes on learning."""
    images = make_images(tmp_path / "images", ["ant", "bee"], 6)
    shutil.copy(images / "ant" / "5.png", images / "ant" / "0 copy.png")
    shutil.copy(images / "bee" / "3.png", images / "ant" / "wrong.png")
    given = f"--data.root {images} --model.backbone pixels:8 --data.num_workers 0"
    line = f"sums --shard 1/3 3/3 2/3 --output {tmp_path}/s {given}"
    assert_ends(main(line.split()), 0, "ant/wrong.png (also in bee)", capsys)
    plan = json.loads((tmp_path / "s" / "plan.json").read_text())
    assert plan["counts"] == [6, 5]
    model = merged(tmp_path / "m", tmp_path / "s")
    assert model.counts == {"ant": 6, "bee": 5}
    found = [
        prediction.classes[0] for prediction in model.classify(str(images / "bee"))
    ]
    assert found == ["bee"] * 6
    result = cifnet_pl.extend(model, make_images(tmp_path / "more", ["dog"], 9))
    assert result.model.class_names == ["ant", "bee", "dog"]


# ---------------------------------------------------------------------- each sample once


def test_a_class_whose_name_is_not_utf_8(latin_name: str, tmp_path: Path):
    names = [latin_name, "ant"]
    root = make_images(tmp_path / "images", names, 6)
    words = ("--data.root", str(root), "--model.backbone", "pixels:4")
    make(tmp_path, (*words, "--model.head=RidgeHead"), 1, Shard(1, 1))
    model = merged(tmp_path / "b", tmp_path / "shard-1-of-1.sums")
    assert sorted(model.class_names) == names


def test_a_folder_is_for_one_set(vectors: Path, tmp_path: Path):
    file = tmp_path / "vectors.npz"
    shutil.copy(vectors, file)
    make(tmp_path, options(file), 1, Shard(1, 2))
    for column in ("labels", "embeddings"):
        stored = dict(np.load(vectors))
        stored[column] = stored[column][::-1]
        np.savez(file, **stored)
        learner_of.cache_clear()
        set_of.cache_clear()
        with pytest.raises(DataError, match="has changed since it was planned"):
            make(tmp_path, options(file), 1, Shard(2, 2))
    for other in ("--model.head=SLDAHead", "--model.head.ridge=7"):
        with pytest.raises(UsageError, match="or for another model"):
            make(tmp_path, (*options(file), other), 1, Shard(1, 2))
    with pytest.raises(UsageError, match="sums of other data"):
        make(tmp_path, options(vectors), 1, Shard(2, 2))


def test_overlapping_shards_and_other_sets_are_refused(vectors, shards, tmp_path):
    """Of another set, even of as many samples with the same labels, positions say nothing."""
    half = write_parts(learner(vectors), tmp_path, 2, (1,))
    with pytest.raises(UsageError, match="which would count twice"):
        add_up([*half, shards[1]])
    with pytest.raises(UsageError, match="would count twice"):
        add_up([*shards, shards[1]])
    add_up([*half, shards[4]])  # 1/2 and 5/5 do not overlap
    stored = dict(np.load(vectors))
    stored["embeddings"] += 1
    np.savez(tmp_path / "other.npz", **stored)
    other = write_parts(learner(tmp_path / "other.npz"), tmp_path, 5, (1,))
    with pytest.raises(UsageError, match="of different sets"):
        add_up([*other, *shards[1:]])


def test_finished_shards_are_skipped_and_damaged_ones_made_again(vectors, tmp_path):
    def made() -> str:
        return make(tmp_path, options(vectors), 1, Shard(1, 3))

    assert "samples" in made()
    path = tmp_path / "shard-1-of-3.sums"
    content = path.read_bytes()
    assert made() == "shard-1-of-3 is finished already"
    flipped = bytearray(content)
    flipped[-10] ^= 1
    for damaged in (content[:-100], flipped, save({"x": torch.zeros(1)})):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            add_up([path])
        assert "samples" in made()
        assert path.read_bytes() == content


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--shard 6/5", "--shard is '6/5'"),
        ("", "give either --shard"),
        ("--shard 1/2 --model.head CIFNetHead", "CIFNetHead"),
        ("--shard 1/2 --data.tune 0.2", "unknown option --data.tune"),
        ("--shard 1/2 --data.options.lable y", "unknown option of data source"),
        ("--shards 0", "shards is 0"),
        ("--shards=-1", "shards is -1"),
        (
            "--shard 1/2 --config folder --model.buffer.strategy herding",
            "buffer strategy herding",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(words, sentence, vectors, tmp_path, capsys):
    code = main(["sums", "--output", str(tmp_path), *words.split(), *options(vectors)])
    assert code == (1 if "CIFNetHead" in words else 2)
    assert sentence in one_sentence(capsys)
    assert not list(tmp_path.glob("*.sums"))
