"""What `cifnet` says of itself: every command with one line, and its version."""

import re
from importlib.metadata import version

import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.cli.commands import COMMANDS, RUNS


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"], ["help"]], ids=" ".join)
def test_every_command_has_one_line(args, capsys):
    assert main(args) == 0
    shown = capsys.readouterr().out
    for name in (*RUNS, *COMMANDS):
        assert re.search(rf"^  {name} +[A-Z][^\n]{{20,140}}\.$", shown, re.MULTILINE), name


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option, capsys):
    assert main([option]) == 0
    assert capsys.readouterr().out == f"cifnet_pl {version('cifnet_pl')}\n"
