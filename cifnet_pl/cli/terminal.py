"""What a run says and how its process is set: news and no noise on the screen, memory and threads, errors in words."""

from __future__ import annotations

import errno
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.files import is_first_process
from cifnet_pl.utilities.memory import keep_freed_memory
from cifnet_pl.utilities.text import printable

SPINS = 40_000
"""Turns of the loop in which a thread of GNU's OpenMP waits for more work before it gives up its core."""


def prepare_process() -> None:
    """Set up this process: every character can be printed, memory is reused, threads wait briefly, news are shown."""
    for stream in (sys.stdout, sys.stderr):  # whatever their encoding (cp1252, ASCII, …)
        if hasattr(stream, "reconfigure"):  # streams that a test or a notebook put there may lack it
            stream.reconfigure(errors="backslashreplace")
    keep_freed_memory()
    wait_briefly()
    logger = logging.getLogger("cifnet_pl.backbones")
    if not logger.handlers:
        logger.addHandler(News())
    logger.setLevel(logging.INFO)
    logger.propagate = False


def wait_briefly() -> None:
    """Shorten the time for which a network's idle threads keep their cores busy.

    A thread of GNU's OpenMP, which torch's Linux builds use, spins for 300,000 steps by default before it sleeps
    (measured: 9 ms), on the core on which a worker is to decode the next images; with ``SPINS`` steps it is 1 ms.
    Settings that the user made for OpenMP are not changed. Call this before torch is imported, which reads them then.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


class News(logging.Handler):
    """Prints notes for the user, one line each, from the first process of a run: which engine runs the network."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print to the current standard error stream."""
        if is_first_process():
            print(f"cifnet: {record.getMessage()}", file=sys.stderr, flush=True)


def warn(warnings: Iterable[str], unreadable: Iterable[tuple[Path, str]] = ()) -> None:
    """Print warnings, and the photos that could not be read, to the standard error stream."""
    for warning in warnings:
        print(f"cifnet: {warning}", file=sys.stderr)
    for file, reason in unreadable:
        print(f"skipped {printable(str(file))}: {reason}", file=sys.stderr)


SIGNS = ("closed by peer", "reset by peer", "Broken pipe", "remote process exited")
"""Parts of a RuntimeError's message that say that another process is gone."""

WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)


@contextmanager
def explained() -> Iterator[None]:
    """Within the block, replace errors about lost processes and files that cannot be written by a CifnetError."""
    try:
        yield
    except RuntimeError as error:
        if not any(sign in str(error) for sign in SIGNS):
            raise
        raise CifnetError("another process of this run ended: its own message says why") from error
    except OSError as error:
        if error.errno not in WRITING:
            raise
        raise CifnetError(
            f"cannot write {error.filename or 'into the folder of the run'}: {error.strerror}; "
            "put that right, then the same command with --ckpt_path last goes on"
        ) from error


QUIET_WARNINGS = (
    r".*does not have many workers.*",
    r".*in eval mode at the start of training.*",
    r".*configure_optimizers.*returned.*None.*",
    r".*GPU available but not used.*",
    r".*isinstance\(treespec, LeafSpec\).*",
    r".*smaller than the logging interval.*",
    r".*LightningCLI's args parameter.*",
    r".*Couldn't infer the batch indices.*",
    r".*Total length of .* across ranks is zero.*",
)
QUIET_NEWS = (
    "`Trainer.fit` stopped",
    "💡 Tip",
    "TPU available",
    "HPU available",
    "GPU available",
    "Seed set to",
    "Restoring states from",
    "Restored all states",
    "Loaded model weights",
    "Initializing distributed",
    "distributed_backend=",
    "CUDA_VISIBLE_DEVICES: ",
    "that has Tensor Cores",  # sums are in float64, or wanted to be exact in float32
    "Automatic Mixed Precision",
)
LOGGERS = (
    "lightning.pytorch.utilities.rank_zero",
    "lightning.fabric.utilities.rank_zero",
    "lightning.fabric.utilities.seed",
    "lightning.fabric.utilities.distributed",
    "lightning.pytorch.accelerators.cuda",
)


def quieten() -> None:
    """Silence advice that is wrong for a run without gradients, and messages that the run's own lines replace."""
    for message in QUIET_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    for name in LOGGERS:
        logging.getLogger(name).addFilter(lambda record: not any(part in record.getMessage() for part in QUIET_NEWS))
