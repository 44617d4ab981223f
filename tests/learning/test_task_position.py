"""A run that was stopped inside a task goes on there: the batches that are in its sums are not read again."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

import cifnet_pl.learning.callbacks.checkpoint
import cifnet_pl.learning.callbacks.pictures
import cifnet_pl.learning.cifnet_module
from cifnet_pl.__main__ import main
from cifnet_pl.data.sources.tar_shards import EncodedSet
from cifnet_pl.learning.cifnet_module import CIFNetModule
from tests.command_line import BUFFER, assert_same_model, checkpoint, fit, measurements
from tests.data.test_tar_shards import OPTIONS as TAR_OPTIONS
from tests.data.test_tar_shards import build, photos  # noqa: F401
from tests.killing import Killed, at_call, in_a_process, kill_self

SAVE = ["--checkpoint.every_steps", "4"]
OPTIONS = ["--data.batch_size", "16", "--seed_everything", "5", "--data.max_tasks", "2", *SAVE]
LAST = ["--ckpt_path", "last"]
RETURNING = ["--model.head", "RidgeHead", "--data.stream", "Returning"]
KINDS = {
    "paper": BUFFER,
    "ridge": ["--model.head", "RidgeHead"],
    "ridge, calibrated": [*BUFFER, "--model.head", "RidgeHead", "--model.calibrate", "true"],
    "acil": ["--model.head", "ACILHead", "--model.head.width", "64"],
    "dsal": ["--model.head", "DSALHead", "--model.head.width", "64"],
    "ncm": ["--model.head", "NCMHead"],
    "slda": ["--model.head", "SLDAHead"],
    "knn": ["--model.head", "KNNHead"],
    "logistic": ["--model.head", "LogisticHead"],
    "returning": RETURNING,
}


@pytest.fixture(scope="module", autouse=True)
def quick_picture():
    """Drawing takes longer than these runs."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cifnet_pl.callbacks.trajectory, "draw_trajectory", lambda *_: Figure(figsize=(1, 1), dpi=20))
        yield


def killed_at(step: int, run: Callable[[], int]) -> None:
    """Run until ``training_step`` is called for the time ``step``, and end there."""

    def die() -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CIFNetModule, "training_step", at_call(step, CIFNetModule.training_step, die))
        with pytest.raises(Killed):
            run()


def steps_of(run: Callable[[], int]) -> list[int]:
    """Run to the end: the number of batches that are learned in the first task and in the second one."""
    steps = [0, 0]

    def counted(self: Any, *args: Any) -> Any:
        steps[self.trainer.current_epoch] += 1
        return real(self, *args)

    real = CIFNetModule.training_step
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CIFNetModule, "training_step", counted)
        assert run() == 0
    return steps


@pytest.mark.parametrize("kind", KINDS)
def test_every_head_ends_with_the_same_bits(kind: str, tmp_path: Path):
    """Killed in the second task, and once more in what was left of it."""
    options = [*KINDS[kind], *OPTIONS]
    whole = steps_of(partial(fit, tmp_path / "reference", *options))
    reference = tmp_path / "reference" / "default" / "version_0"
    killed_at(whole[0] + 7, partial(fit, tmp_path, *options))
    killed_at(5, partial(fit, tmp_path, *options, *LAST))
    saved = checkpoint(tmp_path / "default" / "version_0")
    assert saved["cifnet"]["under_way"]
    assert saved["position"]["batches"] % 4 == 0
    left = steps_of(partial(fit, tmp_path, *options, *LAST))
    assert left == [0, whole[1] - saved["position"]["batches"]]
    assert left[1] < whole[1]
    run = tmp_path / "default" / "version_0"
    assert_same_model(run, reference)
    assert measurements(run) == measurements(reference)
    if kind == "returning":
        assert (run / "prequential.csv").read_text() == (reference / "prequential.csv").read_text()


def test_it_is_saved_after_some_minutes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By a clock that is a minute further at each look: there is one after each batch, and one when it is saved."""
    clock = SimpleNamespace(monotonic=partial(next, itertools.count(step=60)))
    monkeypatch.setattr(cifnet_pl.learning.callbacks.checkpoint, "time", clock)
    options = [*KINDS["ridge"], *OPTIONS[: -len(SAVE)], "--checkpoint.every_minutes", "3.5"]
    killed_at(7, partial(fit, tmp_path, *options))
    assert checkpoint(tmp_path / "default" / "version_0")["position"]["batches"] == 4


def killed_by_the_system(logs: Path, step: int, options: list[str]) -> int:
    CIFNetModule.training_step = at_call(step, CIFNetModule.training_step, kill_self)
    return main(["fit", *options, "--logs", str(logs)])


def decoded_after_a_kill(options: list[str], logs: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fit once straight and once killed by the system after six batches: equal bits.

    Returns:
        The names of the photos that the run that went on decoded.
    """
    options = [*options, "--checkpoint.every_steps", "2"]
    assert main(["fit", *options, "--logs", str(logs / "reference")]) == 0
    code = in_a_process(partial(killed_by_the_system, logs, 6, options), logs / "output")
    assert code == -9, (logs / "output").read_text()
    decoded: list[str] = []
    real = EncodedSet.square

    def square(self: EncodedSet, index: int, *args: Any) -> Any:
        decoded.append(self.names[index])
        return real(self, index, *args)

    monkeypatch.setattr(EncodedSet, "square", square)
    assert main(["fit", *options, "--logs", str(logs), *LAST]) == 0
    assert_same_model(*(folder / "default" / "version_0" for folder in (logs, logs / "reference")))
    return decoded


def test_shards_that_were_read_are_not_read_again(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    """Photos in tar files, one task; killed by the system after most of them."""
    arguments = ["--data.source", "webdataset", "--data.root", str(photos / "shards"), "--data.num_workers", "0"]
    options = [*TAR_OPTIONS, *arguments, "--data.classes_per_task", "3", "--data.batch_size", "5"]
    decoded = decoded_after_a_kill(options, tmp_path, monkeypatch)
    names = list(build(photos / "shards").train.names)
    assert [name for name in decoded if name.startswith("train")] == names[4 * 5 :]
    run, reference = (folder / "default" / "version_0" for folder in (tmp_path, tmp_path / "reference"))
    assert (
        json.loads((run / "summary.json").read_text())["A_k"]
        == (json.loads((reference / "summary.json").read_text())["A_k"])
    )


def test_other_samples_or_batches_start_the_task_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    options = [*KINDS["ridge"], *OPTIONS]
    whole = steps_of(partial(fit, tmp_path / "reference", *options))
    killed_at(whole[0] + 7, partial(fit, tmp_path, *options))
    sentence: list[str] = []
    monkeypatch.setattr(cifnet_pl.learning.cifnet_module, "rank_zero_info", sentence.append)
    assert fit(tmp_path, *options, *LAST, "--data.batch_size", "32") == 0
    assert sentence == ["task 2 starts again: its samples, their batches or the processes are others now"]
    run = tmp_path / "default" / "version_0"
    reference = checkpoint(tmp_path / "reference" / "default" / "version_0")["state_dict"]
    for key, value in checkpoint(run)["state_dict"].items():
        torch.testing.assert_close(value, reference[key], rtol=1e-9, atol=1e-9)


def test_a_damaged_position_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = [*KINDS["ridge"], *OPTIONS]
    killed_at(7, partial(fit, tmp_path, *options))
    path = tmp_path / "default" / "version_0" / "checkpoints" / "last.ckpt"
    content = torch.load(path, weights_only=True)
    del content["position"]["hashes"]
    torch.save(content, tmp_path / "new.ckpt")
    os.replace(tmp_path / "new.ckpt", path)
    capsys.readouterr()
    assert fit(tmp_path, *options, *LAST) == 1
    assert "is damaged: its position inside a task cannot be read" in capsys.readouterr().err
