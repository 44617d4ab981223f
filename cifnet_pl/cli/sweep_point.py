"""Run one point of a sweep (``python -m cifnet_pl.cli.sweep_point FILE``) while holding the lock of its folder."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

from cifnet_pl.__main__ import main
from cifnet_pl.cli.sweep_plan import running


def run(config: Path) -> int:
    """Learn from a configuration, starting from the last checkpoint if there is one; return the exit code."""
    # Lightning starts this module again for each further process of the run: they belong to the one with the lock.
    with nullcontext() if "LOCAL_RANK" in os.environ else running(config.parent):
        return main(["fit", "--config", str(config), "--ckpt_path", "last"])


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1])))
