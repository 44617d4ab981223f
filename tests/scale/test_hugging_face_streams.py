"""Streams of Hugging Face ``datasets``: every row once, in any number of processes, from the set's own files."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cifnet_pl.data.loading import ImageLoader, shard_batches
from cifnet_pl.data.sets import Source, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.command_line import environment

pytest.importorskip("datasets")
from tests.scale.tables import in_pieces

MODULE = import_module("cifnet_pl.data.sources.hugging_face")  # a function of this name stands beside it
pytestmark = [pytest.mark.scale, pytest.mark.timeout(600)]


def stream(root: Path, **own: Any) -> Source:
    return build_source("hf", SourceOptions(root, own={"streaming": True, **own}))


@pytest.fixture
def pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    (tmp_path / "data").mkdir()
    in_pieces(tmp_path / "data", monkeypatch)
    return tmp_path / "data"


def test_a_stream_reads_one_row_group_at_a_time_and_no_other_column(pieces: Path, monkeypatch: pytest.MonkeyPatch):
    source = stream(pieces)
    rows = source.train.read.rows
    assert np.diff(rows.starts).tolist() == [1, 2, 2, 2, 2, 1, 2, 2, 1]
    opened: list[int] = []
    real = MODULE._cells
    monkeypatch.setattr(MODULE, "_cells", lambda *given: (opened.append(given[1]), real(*given))[1])
    contents = [source.train.given(i) for i in range(len(source.train))]
    assert len(opened) == 7  # each once
    assert rows.files[0].column_names == ["image"]
    listed = build_source("hf", SourceOptions(pieces))
    assert contents == [listed.train.given(i) for i in range(len(listed.train))]
    assert list(source.train.names) == list(listed.train.names)  # so that either continues the other's runs


def test_a_stream_makes_no_copy_of_the_set(pieces: Path, tmp_path: Path):
    code = f"""
from cifnet_pl.data.sets import SourceOptions
from cifnet_pl.data.sources import build_source
from pathlib import Path
source = build_source("hf", SourceOptions(Path({str(pieces)!r}), own={{"streaming": True}}))
assert source.train.given(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(HF_HOME=str(tmp_path / "home")))
    assert not list((tmp_path / "home").rglob("*.arrow"))


def contents_of(source: Source, part: list[int]) -> list[bytes]:
    return [source.train.given(row) for row in part]


def test_a_fork_in_the_middle_of_a_row_group(pieces: Path):
    source = stream(pieces)
    everything = list(range(len(source.train)))
    expected = contents_of(source, everything)
    assert source.train.given(1) == expected[1]  # leaves this process inside a row group
    with get_context("fork").Pool(2) as pool:
        shares = [everything[start::3] for start in range(3)]
        for share, result in zip(shares, pool.starmap(contents_of, [(source, s) for s in shares]), strict=True):
            assert result == [expected[row] for row in share]


@pytest.mark.parametrize(("world", "workers"), [(1, 2), (2, 2), (3, 5)])
def test_a_stream_is_divided_exactly(world: int, workers: int, pieces: Path):
    """Fewer files and row groups than workers: each sample once, none left out."""
    source = stream(pieces)
    found: list[int] = []
    for rank in range(world):
        batches = shard_batches(np.arange(len(source.train)), 2, rank, world)
        loader = ImageLoader(source.train, 6, 1.0, workers, 2)
        try:
            for batch in loader.decode(batches):
                found += batch.row.tolist()
        finally:
            loader.close()
    assert sorted(found) == list(range(len(source.train)))


def test_a_stream_that_changes_while_it_is_read(pieces: Path):
    source = stream(pieces)
    assert source.train.given(0)
    mark = source.train.mark(0)
    (pieces / "train-2.parquet").write_bytes((pieces / "train-1.parquet").read_bytes())
    with pytest.raises(DataError, match=r"data changed while it was read: start the run again"):
        source.train.given(5)
    assert stream(pieces).train.mark(0) != mark


def test_a_stream_of_which_a_file_is_cut_off(pieces: Path):
    path = pieces / "train-1.parquet"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"cannot (load|read) .*data: ") as caught:
        stream(pieces)
    assert "\n" not in str(caught.value)


def test_streaming_is_true_or_false(pieces: Path):
    with pytest.raises(UsageError, match=r"streaming is maybe, expected true or false"):
        stream(pieces, streaming="maybe")
