"""The table of sub-commands: every one has a function, and help needs neither torch nor Lightning."""

import inspect
import subprocess
import sys
from importlib import import_module

import pytest
from jsonargparse import ArgumentParser

from cifnet_pl.__main__ import main
from cifnet_pl.cli.commands import COMMANDS, RUNS, outline, run_command, with_lists
from cifnet_pl.utilities.errors import UsageError
from tests.command_line import environment


@pytest.mark.parametrize("name", COMMANDS)
def test_the_outline_is_the_function_without_its_body(name):
    command = COMMANDS[name]
    function, outlined = getattr(import_module(command.module), name), outline(name)
    assert str(inspect.signature(outlined)) == str(inspect.signature(function))
    assert inspect.signature(outlined, eval_str=True) == inspect.signature(function, eval_str=True)
    assert outlined.__doc__ == function.__doc__
    own = inspect.signature(function).parameters
    assert {command.positional, command.overrides} - {None} <= set(own)


def test_summaries_are_one_line():
    summaries = [*RUNS.values(), *(command.summary for command in COMMANDS.values())]
    for summary in summaries:
        assert summary.endswith(".")
        assert len(summary) <= 100
    assert not set(RUNS) & set(COMMANDS)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["info", "--help"], 0, "usage: cifnet info --model MODEL"),
        (["forget", "--help"], 0, "--class [ITEM,...]"),
        (["info", "--modle", "x"], 2, "cifnet: error: unknown option --modle: did you mean --model?"),
        (["classify", "--model", "x", "--images", "y", "--output", "z", "--top", "few"], 2, "--top is 'few'"),
        (["report", "--refrence", "A"], 2, "unknown option --refrence: did you mean --reference?"),
        (["merge", "--output", "x"], 2, "no models are given: name them before the options, cifnet merge MODELS"),
        (["extend", "--model", "x", "--images", "a", "b", "--output", "c"], 2, "'b' is one word too many"),
        (["extend", "--images", "a", "--images", "b", "--model", "x", "--output", "c"], 2, "--images is given twice"),
    ],
)
def test_help_and_errors_in_options_import_no_torch(words, code, said):
    program = "import sys; from cifnet_pl.__main__ import main\ntry: code = main(sys.argv[1:])\n"
    program += "except SystemExit as end: code = end.code\n"
    program += "print(sorted({'torch', 'lightning', 'numpy'} & set(sys.modules))); sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (code, "[]")
    assert said in done.stdout + done.stderr


def test_to_classify_needs_neither_lightning_nor_what_only_runs_need():
    program = "import sys; import cifnet_pl.cli.classify, cifnet_pl.model.store\n"
    program += "print(sorted({'lightning', 'torchmetrics', 'torchvision', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("name", ["emoji 😀", "猫", "[x]", 'a"b\\c', "1: 2", "#"])
def test_lists_take_names_of_all_characters(name: str):
    """As ``--class 😀``, of which JSON's escapes are surrogate pairs that the parser refuses."""
    assert words_of(["--class", name, "plain"]) == [name, "plain"]


def words_of(args: list[str]) -> list[str]:
    """What the parser of ``forget`` makes of a list of names."""
    function = outline("forget")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--class", dest="names", type=list[str])
    names: list[str] = parser.parse_args(with_lists(function, args)).names
    return names


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.positional])
def test_words_by_position_are_asked_for(name):
    with pytest.raises(UsageError, match=r"^no (files|models|runs) are given: name them before the options"):
        run_command(name, [])


def test_a_pipe_that_nobody_reads_ends_a_command_quietly():
    """As in ``cifnet configs | head``."""
    words = [sys.executable, "-m", "cifnet_pl", "configs"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize("name", ["classify", "extend", "forget", "merge"])
def test_the_engine_has_the_name_that_it_has_for_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--model.engine", "tensorrt"], ["--model.engine=tensorrt"]):
        assert main([name, *words]) == 2
        assert "--engine is 'tensorrt', expected one of 'auto', 'torch', 'onnxruntime'" in capsys.readouterr().err


def test_an_option_without_its_value_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["classify", "--model"], ["report", "runs", "--output"]):
        assert main(words) == 2
        assert capsys.readouterr().err == f"cifnet: error: {words[-1]} needs a value\n"
