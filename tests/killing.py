"""Ends runs at exact moments: with SIGKILL in a process of their own, or with an exception that
nothing may catch.
"""

import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import torch
from lightning.pytorch import Callback

DEFAULT = multiprocessing.get_start_method()
SERVER = multiprocessing.get_context("forkserver")
PRELOADED = ["tests.fork_server", "uvicorn", "cifnet_pl.serving.app", "pytest"]
PRELOADED += ["tests.command_line", "tests.models"]
SERVER.set_forkserver_preload(PRELOADED)


class Killed(BaseException):
    """The process is gone, as far as this test is concerned."""


def die(*_: Any) -> NoReturn:
    """Leave undone what comes after."""
    raise Killed


def at_call(number, function, then, after=False):
    """``function``, which calls ``then`` at its call ``number`` (from 1), before or after it has
    done its work.
    """
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


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Writes past ``limit`` bytes of a file fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    # Python takes a module for compiled of which it could write a part only.
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = False
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def start(work: Callable[[], int], output: Path, terminal: bool = False) -> BaseProcess:
    """Run ``work`` (it must pickle) in a process of its own, which writes to the file or terminal
    ``output``.

    The process is forked from a server that has imported the product and started no thread: a copy
    of the process that runs the tests could wait for threads that were not copied with it.
    """
    threads = torch.get_num_threads()
    process = SERVER.Process(target=_run, args=(work, output, terminal, threads))
    process.start()
    return process


def _run(work: Callable, output: Path, terminal: bool, threads: int) -> NoReturn:
    """Do ``work`` and be gone, without what multiprocessing would say."""
    torch.set_num_threads(threads)  # the server has one
    # Not the server's, which would be started and imported anew.
    multiprocessing.set_start_method(DEFAULT, force=True)
    way = os.O_RDWR if terminal else os.O_WRONLY | os.O_CREAT | os.O_APPEND
    file = os.open(output, way)
    for number in (0, 1, 2) if terminal else (1, 2):
        os.dup2(file, number)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    code = 99
    try:
        code = work()
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(process: BaseProcess) -> int:
    """Wait for a process: its exit code, or minus the signal that ended it. Where the test ends
    meanwhile, so does the process.
    """
    try:
        process.join()
    finally:
        process.kill()
        process.join()
    return process.exitcode


def in_a_process(work: Callable[[], int], output: Path) -> int:
    """Run ``work`` in a process of its own, to its end: its exit code, or minus the signal that
    ended it.
    """
    return ended(start(work, output))


def killed_within(seconds: float, work: Callable[[], int], output: Path) -> int:
    """Start ``work`` in a process of its own and kill it after ``seconds``: its exit code, or minus
    the signal.
    """
    process = start(work, output)
    time.sleep(seconds)
    process.kill()
    return ended(process)


class Act(Callback):
    """Calls ``do(trainer)`` at the first call of a hook in a task (from 0), after ``batches``
    batches of it.
    """

    def __init__(self, hook: str, task: int, do: Callable, batches: int = 0):
        self.task = task
        self.batches = batches
        self.do = do
        self.done = False
        setattr(self, hook, self._act)

    def _act(self, trainer: Any, *rest: Any) -> None:
        batch = rest[-1] if isinstance(rest[-1], int) else self.batches
        is_now = trainer.current_epoch == self.task and batch >= self.batches
        if is_now and not self.done:
            self.done = True
            self.do(trainer)
