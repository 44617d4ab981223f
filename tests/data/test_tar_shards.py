"""Tar shards: each sample once, and one sentence for what is wrong with them."""

import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from cifnet_pl.utilities.errors import DataError
from tests.data.entrances import add_member, built, png


def build(root: Path | str, **options: str):
    return built("webdataset", Path(root), own=options)


def write(path: Path, samples: list[tuple[str, dict[str, bytes]]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    tarfile.open(path, "w").close()
    for key, members in samples:
        for ending, content in members.items():
            add_member(path, f"{key}.{ending}", content)
    return path


def good(count: int = 6, first: int = 0) -> list[tuple[str, dict[str, bytes]]]:
    numbers = range(first, first + count)
    return [(f"s{i}", {"png": png(i), "cls": b"%d" % (i % 2)}) for i in numbers]


@pytest.mark.parametrize(
    ("shards", "sizes"),
    [
        (["train/a/1", "train/b/1", "dev/a/1"], (12, 6)),
        (["more", "dev-set_test_0"], (6, 6)),
        (["latest-0", "contest-1", "pretrained-2"], None),
    ],
)
def test_splits_are_words_in_the_names_of_shards(shards, sizes, tmp_path):
    """The folder above all of them says nothing, whatever its name is."""
    root = tmp_path / "test" / "set"
    for number, name in enumerate(shards):
        write(root / f"{name}.tar", good(first=10 * number))
    source = build(root)
    assert source.held_out is (sizes is None)
    if sizes is not None:
        assert (len(source.train), len(source.test)) == sizes
        assert "splits by the names of files" in source.notes[0]


def test_braces_name_shards_as_in_a_shell(tmp_path: Path):
    for number in (8, 9, 10):
        write(tmp_path / f"a-{number:03}.tar", good(first=10 * number))
    write(tmp_path / "other.tar", good(first=900))
    assert len(build(tmp_path / "a*-0[01][0-9].tar").train.names) == 14
    assert len(build(tmp_path / "a-{008..010}.tar").train.names) == 14
    assert len(build(tmp_path / "a-{008,0[01]9,01*}.tar").train.names) == 14
    with pytest.raises(DataError, match=r"a-011\.tar"):
        build(tmp_path / "a-{008..011}.tar")
    (tmp_path / "a-010.tar").rename(tmp_path / "{1,2}.tar")
    assert len(build(tmp_path / "{1,2}.tar").train.names) == 4  # a file of this name


def test_a_shard_that_is_cut_off(tmp_path: Path):
    path = write(tmp_path / "a.tar", good())
    content = path.read_bytes()
    for size in (100, 700, len(content) // 2, len(content) // 2 + 512):
        path.write_bytes(content[:size])
        with pytest.raises(DataError, match=r"cut off|has no image|has no label"):
            build(tmp_path)
    path.write_bytes(b"x" * 2000)
    with pytest.raises(DataError, match="no tar file"):
        build(tmp_path)


def test_a_shard_that_changes_while_it_is_read(tmp_path: Path):
    path = write(tmp_path / "a.tar", good())
    source = build(tmp_path)
    assert source.train.given(0)
    write(tmp_path / "new" / "b.tar", good(8))
    os.replace(tmp_path / "new" / "b.tar", path)
    with pytest.raises(DataError, match=r"a\.tar changed while it was read"):
        source.train.given(0)
    path.unlink()
    with pytest.raises(DataError, match=r"cannot read shard .*a\.tar"):
        source.train.given(1)


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        ([("a", {"cls": b"1"})], "sample a has no image, it has cls"),
        ([("a", {"png": b"x"})], "sample a has no label"),
        ([("a", {"png": b"x", "json": b"{}"})], "no readable label 'label' in .json"),
        ([], "has no samples"),
    ],
)
def test_wrong_samples(samples, sentence, tmp_path):
    write(tmp_path / "a.tar", samples)
    with pytest.raises(DataError) as caught:
        build(tmp_path)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_same_sample_twice(tmp_path: Path):
    write(tmp_path / "x" / "a.tar", good())
    write(tmp_path / "y" / "a.tar", good())
    with pytest.raises(DataError, match=r"sample 'a\.tar/s\d' stands there twice"):
        build(tmp_path)
    (tmp_path / "x").rename(tmp_path / "train")
    (tmp_path / "y").rename(tmp_path / "val")
    assert len(build(tmp_path).test) == 6  # the same keys in two splits


def test_members_of_a_sample_may_lie_apart(tmp_path: Path):
    write(tmp_path / "together" / "a.tar", good())
    members = []
    for ending in ("png", "cls"):
        members += [(key, {ending: sample[ending]}) for key, sample in good()]
    write(tmp_path / "apart" / "a.tar", members)
    one = build(tmp_path / "together").train
    other = build(tmp_path / "apart").train
    assert list(one.names) == list(other.names)
    for row in range(len(one)):
        assert one.given(row) == other.given(row)


def test_a_text_is_the_name_of_a_class_even_if_it_is_a_number(tmp_path: Path):
    """Article numbers: 007 and 7 are two classes; in ``.cls`` they are one number."""
    labels = ["007", "7", "0012"]
    for ending, names in (("txt", ["0012", "007", "7"]), ("cls", ["7", "12"])):
        contents = [{"png": png(i), ending: labels[i % 3].encode()} for i in range(12)]
        samples = [(f"s{i}", members) for i, members in enumerate(contents)]
        source = build(write(tmp_path / ending / "a.tar", samples))
        assert source.class_names == names
        counts = np.bincount(source.train.labels) + np.bincount(source.test.labels)
        assert counts.tolist() == ([4, 4, 4] if ending == "txt" else [8, 4])


def test_a_label_that_the_user_names_comes_before_other_members(tmp_path: Path):
    """A text beside it is a caption."""
    samples = []
    for i in range(6):
        about = json.dumps({"kind": f"class {i % 2}"}).encode()
        members = {"png": png(i), "txt": b"a caption %d" % i, "json": about}
        samples.append((f"s{i}", members))
    source = build(write(tmp_path / "a.tar", samples), label="kind")
    assert source.class_names == ["class 0", "class 1"]
