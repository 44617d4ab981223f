"""Entry point of the command line, ``python -m cifnet_pl`` and ``cifnet``: choose the sub-command and run it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cifnet_pl.utilities.errors import CifnetError

INTERRUPTED, UNREAD = 130, 141
"""Exit codes as shells have them, 128 and the number of the signal: Ctrl-C, and output that nobody reads."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: words of the command line, without the program's name; None for those of this process.

    Returns:
        The exit code: 0 done, 1 the run failed, 2 wrong usage, 130 interrupted, 141 with output that nobody reads, as
        after ``| head``. A fault of the package keeps its traceback.
    """
    words = list(sys.argv[1:] if args is None else args)
    try:
        _run(words)
        sys.stdout.flush()
    except CifnetError as error:
        print(f"cifnet: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        again = ", with --ckpt_path last to go on where it was" if words[:1] == ["fit"] else ""
        print(f"cifnet: stopped; no file is left half written. Give the command again{again}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        if not _output_is_unread():
            raise
        return UNREAD
    return 0


def _run(words: list[str]) -> None:
    from cifnet_pl.cli import commands
    from cifnet_pl.cli.run_help import topic_of, usual_help
    from cifnet_pl.cli.terminal import prepare_process

    prepare_process()
    if not words or words[0] in ("-h", "--help", "help"):
        print(commands.overview())
    elif words[0] in ("-V", "--version"):
        print(commands.own_version())
    elif words[0] in commands.COMMANDS:
        commands.run_command(words[0], words[1:])
    elif words[0] in commands.RUNS and topic_of(words[1:]) == (True, None):
        print(usual_help(words[0], commands.RUNS[words[0]]))
    else:
        from cifnet_pl.cli.lightning_cli import run  # Lightning takes seconds to import

        run(words)


def _output_is_unread() -> bool:
    """Return whether the standard output's reader has gone; then nothing more is written to it."""
    try:
        print(flush=True)  # what could not be written before is forgotten, so flushing alone would succeed
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
