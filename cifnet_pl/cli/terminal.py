"""Print on any terminal: characters that its encoding lacks are replaced, and never end a run."""

from __future__ import annotations

import codecs
import errno
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version

from cifnet_pl.cli.commands import COMMANDS, RUNS
from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.files import is_first_process
from cifnet_pl.utilities.memory import M_MMAP_MAX, M_TRIM_THRESHOLD, gnu_c_library

STAND_INS = {
    "Ā": "A_bar",
    "→": "->",
    "←": "<-",
    "–": "-",
    "—": "-",
    "−": "-",
    "…": "...",
    "·": ".",
    "•": "*",
    "×": "x",
    "≥": ">=",
    "≤": "<=",
    "±": "+-",
    "λ": "lambda",
    "²": "^2",
    "₂": "2",
    "’": "'",
    "“": '"',
    "”": '"',
    "█": "#",
    "─": "-",
}
"""What this package itself prints, in ASCII; other characters, such as those of class names, become escapes."""

HANDLER = "cifnet_pl.stand_ins"


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that cannot be encoded; an error handler of :mod:`codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    parts = (STAND_INS.get(c) or c.encode("ascii", "backslashreplace").decode() for c in missing)
    return "".join(parts), error.end


def accept_all_characters() -> None:
    """Make standard output and standard error accept every character, whatever their encoding (cp1252, ASCII, …)."""
    codecs.register_error(HANDLER, _stand_in)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # streams that a test or a notebook put there may lack it
        if reconfigure is not None:
            reconfigure(errors=HANDLER)


DONE = 0
"""Exit code of a command that did what was asked."""

INTERRUPTED = 130
"""Exit code of a process that Ctrl-C stopped, as shells have it: 128 and the number of the signal."""

UNREAD = 141
"""Exit code where nobody reads the output any more, as after ``| head``: 128 and the number of the signal."""


def exit_code(command: Callable[[], int]) -> int:
    """Run ``command`` and return its exit code.

    On Ctrl-C print one sentence and return ``INTERRUPTED``; where nobody reads the output, stop and return ``UNREAD``.

    Args:
        command: a function without arguments that returns an exit code.
    """
    try:
        code = command()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("cifnet: error: interrupted; outputs are whole or not there", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        if not _output_is_unread():
            raise
        return UNREAD


def _output_is_unread() -> bool:
    """Return whether the standard output's reader has gone; then nothing more is written to it."""
    try:
        print(flush=True)  # what could not be written before is forgotten, so flushing alone would succeed
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        return True
    return False


SPINS = 40_000
"""Turns of the loop in which a thread of GNU's OpenMP waits for more work before it gives up its core."""


def keep_freed_memory() -> bool:
    """Tell the GNU C library's allocator to reuse large blocks instead of giving each back to the system.

    On a CPU every activation of a layer is a block of many megabytes. By default each block is fresh from the system
    and goes back at once, and the system clears every page of it: measured, up to three quarters of the time of a small
    network. With this setting the process keeps the largest amount of memory that it ever used.

    Returns:
        Whether the setting was changed; other C libraries are left as they are.
    """
    library = gnu_c_library()
    return library is not None and bool(library.mallopt(M_MMAP_MAX, 0) and library.mallopt(M_TRIM_THRESHOLD, -1))


def wait_briefly() -> None:
    """Shorten the time for which a network's idle threads keep their cores busy.

    By default a thread of GNU's OpenMP, which torch's Linux builds use, spins for 300,000 steps before it sleeps
    (measured: 9 ms), on the core on which a worker is to decode the next images; with ``SPINS`` steps it is 1 ms.
    Settings
    that the user made for OpenMP are not changed. Call this before torch is imported, which reads the environment then.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


class News(logging.Handler):
    """Handler that prints notes for the user, one line each, from the first process of a run."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print to the current standard error stream."""
        if is_first_process():
            print(f"cifnet: {record.getMessage()}", file=sys.stderr, flush=True)


def show_news() -> None:
    """Print on the standard error stream which engine runs the network, and why."""
    logger = logging.getLogger("cifnet_pl.backbones")
    if not logger.handlers:
        logger.addHandler(News())
    logger.setLevel(logging.INFO)
    logger.propagate = False


LOST = "another process of this run ended: its own message says why"
KILLED = (
    "a process that decodes photos was killed, as systems do when memory is short: "
    "use fewer --data.num_workers or a smaller --data.batch_size; --ckpt_path last goes on"
)
SIGNS = {
    "closed by peer": LOST,
    "reset by peer": LOST,
    "Broken pipe": LOST,
    "remote process exited": LOST,
    "is killed by signal": KILLED,
    "exited unexpectedly": KILLED,
}
"""Part of a RuntimeError's message → what to say instead."""

WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)


@contextmanager
def explained() -> Iterator[None]:
    """Within the block, replace errors about lost processes and files that cannot be written by a CifnetError."""
    try:
        yield
    except RuntimeError as error:
        explanation = next((sentence for sign, sentence in SIGNS.items() if sign in str(error)), None)
        if explanation is None:
            raise
        raise CifnetError(explanation) from error
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
        logging.getLogger(name).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return not any(pattern in text for pattern in QUIET_NEWS)


HELP = ("-h", "--help", "help")
VERSION = ("-V", "--version")


def overview() -> str:
    """Return the text of ``cifnet --help``."""
    lines = {**RUNS, **{name: command.summary for name, command in COMMANDS.items()}}
    width = max(map(len, lines))
    return "\n".join(
        [
            "usage: cifnet COMMAND [options]",
            "",
            "Class-incremental learning without training: a frozen backbone and a closed-form classifier.",
            "",
            "A run over a stream of tasks:",
            *(f"  {name:<{width}}  {lines[name]}" for name in RUNS),
            "",
            "A learned model (--model takes a run's folder, a checkpoint or a bundle), and several runs:",
            *(f"  {name:<{width}}  {lines[name]}" for name in sorted(COMMANDS)),
            "",
            "cifnet COMMAND --help explains the options of a command; cifnet --version shows the version.",
        ]
    )


def own_version() -> str:
    """Return the text of ``cifnet --version``."""
    return f"cifnet_pl {version('cifnet_pl')}"
