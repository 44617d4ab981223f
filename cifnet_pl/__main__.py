"""Entry point of the command line, ``cifnet`` and ``python -m cifnet_pl``."""

import ctypes
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from cifnet_pl.utilities.errors import CifnetError, refusal, unknown_name
from cifnet_pl.utilities.processes import is_first_process
from cifnet_pl.utilities.text import print_text
from cifnet_pl.utilities.version import __version__

INTERRUPTED = 130
BROKEN_PIPE = 141
"""Exit codes as in shells, 128 and the number of the signal: Ctrl-C, and a closed pipe."""

STOPPED = "stopped; no file is left half written"
AGAIN = "give the command again"
AGAIN_OF_RUN = f"{AGAIN} with --ckpt_path last, to go on where it was"

M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
"""Parameters of ``mallopt``, from malloc.h of the GNU C library."""

SPINS = 40_000
"""Iterations for which a thread of GNU's OpenMP waits actively before it sleeps."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: words of the command line, without the program's name; None for those of this process.

    Returns:
        The exit code: 0 done, 1 the run failed, 2 wrong usage, 130 interrupted, 143 terminated,
        141 a closed pipe, as after ``| head``. A fault of the package keeps its traceback.
    """
    if args is None:
        args = sys.argv[1:]
    words = list(args)
    is_run = words[:1] == ["fit"]
    try:
        prepare_process()
        with _interrupting(signal.SIGINT, signal.default_int_handler):
            _run(words)
            sys.stdout.flush()
    except CifnetError as error:
        print_text(f"cifnet: {error.title}{error}", sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as error:
        again = AGAIN_OF_RUN if is_run else AGAIN
        print_text(f"cifnet: {STOPPED}: {again}", sys.stderr)
        return next(iter(error.args), INTERRUPTED)
    except OSError as error:
        if error.filename is None and isinstance(_error_of_output(), BrokenPipeError):
            return BROKEN_PIPE
        sentence = refusal(error)
        if sentence is None:
            raise
        if is_run:
            sentence += f"; repair that, then {AGAIN_OF_RUN}"
        print_text(f"cifnet: error: {sentence}", sys.stderr)
        return CifnetError.exit_code
    return 0


def _run(words: list[str]) -> None:
    from cifnet_pl.cli import commands

    if not words or words[0] in ("-h", "--help", "help"):
        print(commands.overview())
    elif words[0] in ("-V", "--version"):
        print(f"cifnet_pl {__version__}")
    elif words[0] in commands.COMMANDS:
        # Lightning and the server of the page have their own ends after SIGTERM.
        if words[0] == "serve":
            usual = None
        else:
            usual = signal.SIG_DFL
        with _interrupting(signal.SIGTERM, usual):
            commands.run_command(words[0], words[1:])
    elif words[0] not in commands.TRAINER_COMMANDS:
        known = [*commands.TRAINER_COMMANDS, *commands.COMMANDS]
        raise unknown_name("sub-command", words[0], known)
    else:
        topic = "all"
        if not commands.HELP.isdisjoint(words):
            topic = commands.topic_of(words[1:])
        if topic:
            _run_lightning(words, topic)
        else:
            print(commands.usual_help(words[0]))


QUIET_WARNINGS = (
    r".*does not have many workers.*",
    r".*in eval mode at the start of training.*",
    r".*configure_optimizers.*returned.*None.*",
    r".*GPU available but not used.*",
    r".*isinstance\(treespec, LeafSpec\).*",
    r".*smaller than the logging interval.*",
    r".*LightningCLI's args parameter.*",
    r".*Couldn't infer the batch indices.*",
    r".*`srun` command is available.*",
    r".*Total length of .* across ranks is zero.*",
)


def _run_lightning(words: list[str], topic: str) -> None:
    """Run a sub-command that needs a Trainer.

    Advice of Lightning that is wrong without gradients is not shown, nor messages that the run's
    own lines replace. A signal ends the program, as Lightning lets it pass for a success or an
    error.
    """
    # Lightning takes seconds to import, and sets the levels of its loggers then.
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    from cifnet_pl.cli.lightning_cli import run

    for message in QUIET_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # This package's own messages go through Lightning's logger of the first process.
    shared = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    shared.setLevel(logging.INFO)
    package = str(Path(__file__).parent)
    shared.addFilter(
        lambda record: (
            record.pathname.startswith(package) or record.levelno >= logging.WARNING
        )
    )
    try:
        run(words, topic)
    except SIGTERMException as error:
        raise SystemExit(128 + signal.SIGTERM) from error
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


@contextmanager
def _interrupting(number: signal.Signals, usual: Any) -> Iterator[None]:
    """Make a signal end a program at once that is importing; else it raises `KeyboardInterrupt`.

    Compiled modules turn an exception during their setup into an `ImportError`. Their importers
    then go on without them, or fail with an unrelated traceback.

    Args:
        number: of the signal.
        usual: handler that it has; where it has another one, that stays.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(number) is not usual:
        yield
        return
    signal.signal(number, _interrupt)
    try:
        yield
    finally:
        signal.signal(number, usual)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, f"cifnet: {STOPPED}\n".encode())
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt(128 + number)


def _error_of_output() -> OSError | None:
    """Return the error of writing to the standard output, as of a closed pipe or a full disk.

    After an error nothing more is written to it.
    """
    try:
        # What could not be written before is forgotten, so flushing alone would succeed.
        print(flush=True)
    except OSError as error:
        # Python flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


# ---------------------------------------------------------------------- the process


def prepare_process() -> None:
    """Set up this process: streams, encoding, memory, threads and messages.

    Standard streams that were closed, as by ``>&-``, are opened; what they get is lost. Otherwise
    they could not be written to, and the next file would take the place of one.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # its number, the lowest free one
            os.set_inheritable(nowhere, True)
            stream = os.fdopen(nowhere, "w" if number else "r", encoding="utf-8")
            setattr(sys, name, stream)
    # Whatever their encoding (cp1252, ASCII, …).
    for shown in (sys.stdout, sys.stderr):
        # Streams that a test or a notebook put there may lack it.
        if hasattr(shown, "reconfigure"):
            shown.reconfigure(errors="backslashreplace")
    tune_libraries()
    messages = logging.StreamHandler()
    messages.setFormatter(logging.Formatter("cifnet: %(message)s"))
    messages.addFilter(lambda record: is_first_process())
    for name in ("cifnet_pl.backbones", "cifnet_pl.data", "cifnet_pl.utilities"):
        logger = logging.getLogger(name)
        logger.handlers = [messages]
        logger.setLevel(logging.INFO)
        logger.propagate = False


def tune_libraries() -> None:
    """Let idle threads sleep soon, and the GNU C library reuse large blocks.

    A thread of GNU's OpenMP, which torch's Linux builds use, spins for 300,000 iterations by
    default before it sleeps (9 ms), on a core that a worker needs to decode the next images. With
    ``SPINS`` iterations it is 1 ms. Settings of the user are not changed. Call this before torch is
    imported, which reads them then.

    On a CPU every activation of a layer is a block of many megabytes. By default each one is fresh
    from the system, which clears all of its pages: torch runs a small network 1.3 to 3 times as
    fast without. The process then keeps the most memory that it ever used. Other C libraries are
    left as they are.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))
    try:
        library = ctypes.CDLL("libc.so.6")
    except OSError:
        return
    library.mallopt(M_MMAP_MAX, 0)
    library.mallopt(M_TRIM_THRESHOLD, -1)


if __name__ == "__main__":
    sys.exit(main())
