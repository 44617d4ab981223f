"""Exit codes of the command line, and what ends it early: Ctrl-C, or a pipe whose reader has gone.

The codes for wrong usage (2) and for a run that failed (1) belong to the errors, in :mod:`cifnet_pl.utilities.errors`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

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
