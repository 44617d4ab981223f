"""The table of sub-commands: every one has a function, and help needs no torch; help of runs."""

import inspect
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from functools import cache
from importlib import import_module
from importlib.metadata import version

import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.cli.commands import (
    BY_POSITION,
    COMMANDS,
    OVERRIDES,
    TRAINER_COMMANDS,
    Engine,
    parser_of,
    run_command,
)
from cifnet_pl.cli.parsing import options_in
from tests.command_line import assert_ends, environment


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option_and_its_examples_are_parsed(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    function = getattr(import_module(f"cifnet_pl.cli.{name}"), name)
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    options = set(inspect.signature(function).parameters) - {*BY_POSITION, OVERRIDES}
    for parameter in options:
        assert re.search(rf"--{parameter.rstrip('_')}\b", shown), parameter
    assert "CLASS_" not in shown
    examples = shown.split("examples:\n")[1].partition("\n\n")[0].splitlines()
    assert 1 <= len(examples) <= 2
    parser = parser_of(function)
    for line in examples:
        words = shlex.split(line)
        assert words[:2] == ["cifnet", name]
        given = options_in(words[2:])
        parser.parse_args([word for word, value in given if value is None])


def test_the_overview_has_a_line_for_every_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    overviews = set()
    for args in ([], ["--help"], ["-h"], ["help"]):
        assert main(args) == 0
        overviews.add(capsys.readouterr().out)
    (shown,) = overviews
    for name in (*TRAINER_COMMANDS, *COMMANDS):
        assert re.search(rf"(?m)^  {name} +[A-Z][^\n]{{20,100}}\.$", shown), name
    assert list(COMMANDS) == sorted(COMMANDS)
    assert max(map(len, shown.splitlines())) <= 80


def test_version(capsys):
    for option in ("--version", "-V"):
        assert main([option]) == 0
        assert capsys.readouterr().out == f"cifnet_pl {version('cifnet_pl')}\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fot", "unknown sub-command 'fot': did you mean "),
        ("fit images", "unrecognized arguments: images (images are given as --data"),
        ("info --modle x", "unknown option --modle: did you mean --model?"),
        ("forget --engine=rt", "--engine is 'rt', expected 'auto', 'torch', "),
        ("report runs --output", "argument --output: expected one argument\n"),
        ("report --extrenal A", "unknown option --extrenal: did you mean --extern"),
        ("merge --output x", "arguments are required: models"),
        ("extend --model x --images a b --output c", "unrecognized arguments: b"),
        ("classify --model x --images a '' --output c", "an argument is empty"),
        ("fit --help trayner", "did you mean trainer?"),
    ],
)
def test_errors_in_options(line, said, capsys):
    assert_ends(main(shlex.split(line)), 2, said, capsys)


def imported(program: str, *packages: str) -> str:
    """Those of some packages that a program imports in a process of its own."""
    named = f"print(sorted({{*{packages}}} & set(sys.modules)))"
    words = [sys.executable, "-c", f"import sys\n{program}\n{named}"]
    options = {"env": environment(), "capture_output": True, "text": True}
    done = subprocess.run(words, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_no_module_of_a_command_imports_torch():
    """So help and errors in options take no longer than Python and the parser."""
    modules = ", ".join(f"cifnet_pl.cli.{name}" for name in COMMANDS)
    program = f"import {modules}\nfrom cifnet_pl.__main__ import main\n"
    packages = ("torch", "lightning", "matplotlib", "pandas", "scipy")
    assert imported(f"{program}main(['fit', '--help'])", *packages) == "[]"


@pytest.mark.system
def test_to_classify_needs_neither_lightning_nor_what_only_runs_need():
    packages = ("lightning", "torchmetrics", "torchvision", "sklearn", "matplotlib")
    program = "import cifnet_pl.cli.classify, cifnet_pl.model.store"
    assert imported(program, *packages) == "[]"


@pytest.mark.parametrize("name", ["emoji 😀", 'a"b\\c', "1: 2", os.fsdecode(b"\xff")])
def test_lists_and_words_take_names_of_all_characters(name, monkeypatch):
    """In one option or several, as a file's name may be."""
    given = {}

    def forget(model: str, class_: Sequence[str], output: str, engine: Engine = "auto"):
        given.update(class_=class_, output=output, engine=engine)

    monkeypatch.setattr("cifnet_pl.cli.forget.forget", forget)
    words = ["--class", name, "plain", "--class=a", "--model", "m"]
    run_command("forget", [*words, "--output", f"{name}.x"])
    classes = [name, "plain", "a"]
    assert given == {"class_": classes, "output": f"{name}.x", "engine": "auto"}


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("| true", 141, ""),
        (">/dev/full", 1, "cannot write a file: No space left on device\n"),
        ("<&- >&-", 0, ""),  # no file that is opened later takes the number of one
    ],
)
def test_outputs_that_nobody_reads_or_keeps(ending, code, said):
    words = f"set -o pipefail; {sys.executable} -m cifnet_pl configs {ending}"
    done = subprocess.run(["bash", "-c", words], env=environment(), capture_output=True)
    error = f"cifnet: error: {said}" if said else ""
    assert (done.returncode, done.stderr.decode()) == (code, error)


# ---------------------------------------------------------------------- help of runs


@cache
def help_on(topic):
    """What ``fit --help TOPIC`` shows."""
    text = io.StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        main(["fit", "--help", topic])
    return text.getvalue()


def named_in(text):
    return set(re.findall(r"--[a-z_]+(?:\.[a-z_]+)*", text))


@pytest.mark.parametrize("command", TRAINER_COMMANDS)
def test_the_usual_options_are_one_screen_of_real_ones(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: cifnet {command} ")
    assert shown.count("\n") <= 40
    assert max(map(len, shown.splitlines())) <= 80
    assert f"cifnet {command} " in shown.split("examples:")[1]
    named = named_in(shown)
    real = named_in(help_on("all") + help_on("model"))
    assert named - {"--model.head.ridge", "--help"} <= real
    assert len([name for name in named if name.startswith("--trainer")]) == 1


def test_topics():
    names = [name for name in named_in(help_on("energy")) if "." in name]
    assert {name.partition(".")[0] for name in names} == {"--energy"}
    everything = help_on("all")
    lightning = everything.index("  --trainer.devices")
    assert everything.index("  --data.root ROOT") < lightning
