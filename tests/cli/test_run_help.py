"""Help of runs: the usual options on one screen, without waiting for Lightning; all others by topic."""

import json
import re
import subprocess
import sys

import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.cli.commands import RUNS, TOPICS
from tests.command_line import environment


@pytest.fixture(scope="module")
def helps():
    """Topic → what ``fit --help TOPIC`` shows, in the sizes of a wide terminal."""
    program = "import json, sys, contextlib, io\nfrom cifnet_pl.__main__ import main\nshown = {}\n"
    program += f"for topic in {TOPICS!r}:\n    out = io.StringIO()\n"
    program += "    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):\n"
    program += "        main(['fit', '--help', topic])\n    shown[topic] = out.getvalue()\nprint(json.dumps(shown))"
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def options(text):
    return set(re.findall(r"--[a-z_]+(?:\.[a-z_]+)*", text))


@pytest.mark.parametrize("command", RUNS)
def test_the_usual_options_are_one_screen_of_real_ones(command, helps, capsys):
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: cifnet {command} ")
    assert shown.count("\n") <= 40
    assert f"cifnet {command} " in shown.split("examples:")[1]
    assert options(shown) - {"--model.head.ridge", "--help"} <= options(helps["all"] + helps["model"])
    assert len([name for name in options(shown) if name.startswith("--trainer")]) == 1


def test_topics(helps, capsys):
    for topic in set(TOPICS) - {"all"}:
        names = {name for name in options(helps[topic]) if name.startswith("--")}
        assert names
        assert {name.partition(".")[0] for name in names if "." in name} == {f"--{topic}"}
    own, lightning = helps["all"].index("  --data.root ROOT"), helps["all"].index("  --trainer.devices")
    assert own < lightning
    assert main(["fit", "--help", "trayner"]) == 2
    assert "did you mean trainer?" in capsys.readouterr().err


def test_no_internal_class_and_no_mark_of_documentation_is_shown(helps):
    shown = "".join(helps.values())
    classes = ("TaskModule", "SumsHead", "lightning.LightningModule,", "StatisticsDDPStrategy")
    for name in (*classes, ":mod:", ":class:", "``"):
        assert name not in shown
