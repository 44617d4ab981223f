"""Entry point of the command line, ``python -m cifnet_pl`` and ``cifnet``: choose the sub-command and run it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cifnet_pl.cli.terminal import DONE, exit_code


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: words of the command line, without the program's name; None for those of this process.

    Returns:
        The exit code: 0 done, 1 the run failed, 2 wrong usage, 130 interrupted, 141 with output that nobody
        reads (:mod:`cifnet_pl.cli.terminal`).
    """
    return exit_code(lambda: _main(list(sys.argv[1:] if args is None else args)))


def _main(arguments: list[str]) -> int:
    from cifnet_pl.cli.terminal import accept_all_characters, keep_freed_memory, show_news, wait_briefly

    accept_all_characters()
    keep_freed_memory()
    wait_briefly()
    show_news()
    from cifnet_pl.cli import terminal as overview
    from cifnet_pl.cli.commands import COMMANDS, run_command
    from cifnet_pl.utilities.errors import CifnetError

    try:
        if not arguments or arguments[0] in overview.HELP:
            print(overview.overview())
        elif arguments[0] in overview.VERSION:
            print(overview.own_version())
        elif arguments[0] in COMMANDS:
            run_command(arguments[0], arguments[1:])
        else:
            from cifnet_pl.cli.early_check import check_options

            check_options(arguments)
            from cifnet_pl.cli.lightning_cli import run  # Lightning takes seconds to import

            run(arguments)
    except CifnetError as error:
        print(f"cifnet: error: {error}", file=sys.stderr)
        return error.exit_code
    return DONE


if __name__ == "__main__":
    sys.exit(main())
