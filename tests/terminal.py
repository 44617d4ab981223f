"""Run work in a process whose output is a terminal, and read its screen."""

import os
import pty
import re
import select
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.killing import start


def at_a_terminal(work: Callable[[], object], columns: int) -> object:
    """In a process whose output is a terminal."""
    os.environ.update(COLUMNS=str(columns), LINES="40", TERM="xterm")
    return work()


def seen_at_a_terminal(work: Callable[[], object], columns: int = 100) -> str:
    """Everything that ``work`` writes to a terminal, without colours."""
    screen, other_side = pty.openpty()
    process = start(
        partial(at_a_terminal, work, columns),
        Path(os.ttyname(other_side)),
        terminal=True,
    )
    os.set_blocking(screen, False)
    shown = b""
    while process.is_alive() or select.select([screen], [], [], 0)[0]:
        if select.select([screen], [], [], 0.1)[0]:
            shown += os.read(screen, 65536)
    os.close(other_side)
    os.close(screen)
    assert process.exitcode == 0, shown.decode()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).replace("\r", "\n")
