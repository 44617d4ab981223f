"""What a person at a terminal sees."""

import os
import pty
import re

import pytest

from cifnet_pl.callbacks.screen import number, small
from tests.command_line import fit
from tests.killing import finish


@pytest.fixture(scope="module")
def terminal(tmp_path_factory) -> str:
    """Everything that a run writes to a terminal of 100 columns, without colours."""
    logs = tmp_path_factory.mktemp("logs")
    process, screen = pty.fork()
    if process == 0:
        os.environ.update(COLUMNS="100", LINES="40", TERM="xterm")
        finish(lambda: fit(logs, "--data.max_tasks", "3"))
    shown = b""
    while True:
        try:
            part = os.read(screen, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(screen)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0, shown.decode()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).replace("\r", "\n")


def test_the_bar_speaks_of_tasks(terminal):
    for task in (1, 2, 3):
        assert f"Task {task}/3 " in terminal
    assert "Epoch" not in terminal
    # The accuracy over all classes seen stands beside the bar of the task that follows.
    assert re.search(r"Task 2/3 .*A_k: 100\.0 %", terminal)


def test_the_bar_is_gone_before_the_table(terminal):
    table = terminal.index("┏")
    assert "Task" not in terminal[table:]
    assert terminal[table - 1] == "\n"


def test_nothing_but_bar_table_and_two_sentences(terminal):
    words = {"Task", "Validation", "tasks", "classes", "run folder", "Ā", "learning", "state", "task"}
    lines = [line for line in terminal.splitlines() if line.strip()]
    strange = [line for line in lines if not any(word in line for word in words) and line[0] not in "┏┡│└├"]
    assert strange == []


def test_numbers():
    assert number(None) == small(None) == "–"
    assert number(12.345, 1, " %") == "12.3 %"
    assert small(0.000123) == "1.2e-04"
