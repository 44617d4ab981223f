"""``python -m cifnet_pl``: see ``--help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (0 done, 1 the run failed, 2 wrong usage, 130 interrupted)."""
    from cifnet_pl.cli.process_settings import keep_freed_memory, wait_briefly

    keep_freed_memory()
    wait_briefly()
    from cifnet_pl.cli.commands import COMMANDS, run_command
    from cifnet_pl.utilities.errors import CifnetError

    words = list(sys.argv[1:] if args is None else args)
    try:
        if words and words[0] in COMMANDS:
            run_command(words[0], words[1:])
        else:
            from cifnet_pl.cli.lightning_cli import run  # Lightning takes seconds to import

            run(words)
    except CifnetError as error:
        print(f"cifnet: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("cifnet: error: interrupted; outputs are whole or not there", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
