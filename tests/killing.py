"""Ends runs at exact moments: with SIGKILL in a forked process, or with an exception that nothing may catch."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from lightning.pytorch import Callback


class Killed(BaseException):
    """The process is gone, as far as this test is concerned."""


def at_call(
    number: int, function: Callable[..., Any], then: Callable[[], Any], after: bool = False
) -> Callable[..., Any]:
    """``function``, which calls ``then`` at its call ``number`` (from 1), before or after it has done its work."""
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not after:
            then()
        result = function(*args, **kwargs)
        if calls == number and after:
            then()
        return result

    return wrapped


def kill_self() -> None:
    """No clean-up of any kind runs."""
    os.kill(os.getpid(), signal.SIGKILL)


def start(work: Callable[[], int], output: Path) -> int:
    """Run ``work`` in a copy of this process, its output in a file; returns the copy's id."""
    process = os.fork()
    if process == 0:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        finish(work)
    return process


def finish(work: Callable[[], int]) -> NoReturn:
    """In a copy of this process: do ``work`` and be gone, without what pytest would do."""
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)  # not pytest's
    code = 99
    try:
        code = work()
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def forked(work: Callable[[], int], output: Path) -> int:
    """Run ``work`` in a copy of this process: its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(start(work, output), 0)[1])


class Act(Callback):
    """Calls ``do(trainer)`` at the first call of a hook in a task (from 0), after ``batches`` batches of it."""

    def __init__(self, hook: str, task: int, do: Callable[[Any], Any], batches: int = 0):
        self.task, self.batches, self.do, self.done = task, batches, do, False
        setattr(self, hook, self._act)

    def _act(self, trainer: Any, *rest: Any) -> None:
        batch = rest[-1] if isinstance(rest[-1], int) else self.batches
        if not self.done and trainer.current_epoch == self.task and batch >= self.batches:
            self.done = True
            self.do(trainer)
