"""Exit codes of the command line, and what Ctrl-C does: one sentence, and exit code 130.

The codes for wrong usage (2) and for a run that failed (1) belong to the errors, in :mod:`cifnet_pl.utilities.errors`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

DONE = 0
"""Exit code of a command that did what was asked."""

INTERRUPTED = 130
"""Exit code of a process that Ctrl-C stopped, as shells have it: 128 and the number of the signal."""


def exit_code(command: Callable[[], int]) -> int:
    """Run ``command`` and return its exit code; on Ctrl-C print one sentence and return ``INTERRUPTED``.

    Args:
        command: a function without arguments that returns an exit code.
    """
    try:
        return command()
    except KeyboardInterrupt:
        print("cifnet: error: interrupted; outputs are whole or not there", file=sys.stderr)
        return INTERRUPTED
