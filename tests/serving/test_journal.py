"""The journal: what was acknowledged is there, a torn record is not, damage is refused."""

import errno
import os

import pytest

from cifnet_pl.serving import workspace as module
from cifnet_pl.serving.workspace import Journal
from cifnet_pl.utilities.errors import CheckpointError, CifnetError


def written(path, count=3):
    journal = Journal(path)
    for number in range(count):
        journal.append({"number": number, "text": "a\nb — 'ü'"})
    journal.close()
    return path.read_bytes()


def test_records_come_back_in_order(tmp_path):
    written(tmp_path / "journal")
    assert [record["number"] for record in Journal(tmp_path / "journal").records] == [0, 1, 2]


def test_cut_anywhere_the_whole_records_before_remain(tmp_path):
    """Every length that a killed process can leave behind."""
    path = tmp_path / "journal"
    content = written(path)
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        journal = Journal(path)
        assert len(journal.records) == content[:length].count(b"\n")
        journal.append({"number": "next"})
        journal.close()
        assert Journal(path).records[-1] == {"number": "next"}


def test_damage_before_the_end_is_refused(tmp_path):
    path = tmp_path / "journal"
    content = written(path)
    path.write_bytes(content.replace(b'"number": 1', b'"number": 7'))
    with pytest.raises(CheckpointError, match="line 2"):
        Journal(path)


def test_each_record_is_flushed_before_append_returns(tmp_path, monkeypatch):
    journal, flushed = Journal(tmp_path / "journal"), []
    monkeypatch.setattr(module.os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_size))
    journal.append({"number": 1})
    assert flushed == [(tmp_path / "journal").stat().st_size]


def test_full_disk_in_the_middle_of_a_record(tmp_path, monkeypatch):
    """Half of the record is written before the disk is full: none of it stays."""
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.append({"number": 1})
    before, write, calls = path.read_bytes(), os.write, []

    def half(descriptor, content):
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, bytes(content)[: len(content) // 2])

    monkeypatch.setattr(module.os, "write", half)
    with pytest.raises(CifnetError, match="No space left on device; nothing was changed"):
        journal.append({"number": 2})
    monkeypatch.undo()
    assert path.read_bytes() == before
    journal.append({"number": 3})
    assert [record["number"] for record in Journal(path).records] == [1, 3]
