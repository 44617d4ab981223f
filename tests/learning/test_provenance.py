"""Where a run's numbers come from: the same data and machine are told the same, others are not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from cifnet_pl.data.sets import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.learning.run_record import cores, fingerprint, machine, package_commit, processor
from tests.command_line import make_photos


def test_a_fingerprint_is_of_the_data_and_its_split(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", ["ant", "bee"])
    copy = make_photos(tmp_path / "copy", ["ant", "bee"])

    def of(root: Path, **options: float) -> str:
        return fingerprint(build_source("folder", SourceOptions(root, **options)))  # type: ignore[arg-type]

    first = of(photos)
    assert first == of(copy)
    assert len(first) == 16
    assert first != of(photos, split_seed=1)
    path = photos / "ant" / "3.png"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # the same size
    assert first != of(photos)
    path.unlink()
    assert first != of(photos)
    path.write_bytes(b"no image at all")
    assert len(of(photos)) == 16


def test_the_machine_is_named(tmp_path: Path) -> None:
    (tmp_path / "info").write_text("processor : 0\nmodel name\t: Some  CPU @ 2.1GHz\n")
    assert processor(tmp_path / "info") == "Some CPU @ 2.1GHz"
    assert processor(tmp_path / "nothing")
    result = machine(torch.device("cpu"))
    assert result["gpu"] is None
    assert result["machine"] == f"{result['processor']}, {cores()} core{'s' if cores() > 1 else ''}"


def test_the_commit_is_the_packages_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert package_commit(package) is None  # no repository

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    (tmp_path / "other").write_text("")
    git("add", "other")
    git("commit", "-qm", "first")
    package_commit.cache_clear()
    assert package_commit(package) is None  # installed below someone else's repository
    git("add", ".")
    git("commit", "-qm", "second")
    package_commit.cache_clear()
    commit = git("rev-parse", "HEAD").strip()
    assert package_commit(package) == commit
    (package / "__init__.py").write_text("1")
    package_commit.cache_clear()
    assert package_commit(package) == f"{commit}+changes"
