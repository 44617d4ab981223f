"""What a person at a terminal sees."""

import re
from functools import partial

import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.heads import RidgeHead
from cifnet_pl.learning.callbacks.screen import summary_lines
from tests.command_line import FAST, fit, make_images
from tests.lightning_runs import digits, fitted
from tests.terminal import seen_at_a_terminal


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def terminal(logs) -> str:
    """A run of three tasks."""
    return seen_at_a_terminal(partial(fit, logs, "--data.max_tasks", "3"))


@pytest.mark.parametrize(
    ("command", "name", "start"),
    [
        ("validate", "Validation", "\nAccuracy "),
        ("predict", "Predicting", " predictions in "),
    ],
)
def test_results_follow_the_bar(command, name, start, terminal, logs):
    words = [command, *FAST, "--logs", str(logs), "--ckpt_path", "last"]
    shown = seen_at_a_terminal(partial(main, words))
    bar, result = shown.split(start, 1)
    assert name in bar
    assert "━━ " not in result


def test_the_bar_speaks_of_tasks(terminal):
    for task in (1, 2, 3):
        assert f"Task {task}/3 " in terminal
    assert "Epoch" not in terminal
    # The accuracy over all classes seen stands beside the bar of the task that follows.
    assert re.search(r"Task 2/3 .*A_k: 100\.0", terminal)


def test_a_log_shows_each_task_when_it_ends(tmp_path, capsys, caplog):
    """Names may have brackets, and one may have two spellings."""
    names = ["Cup", "[bold] lid", "[x] box", "cup"]
    images = make_images(tmp_path / "images", names, 8)
    words = f"--data.root {images} --data.source folder --model.head RidgeHead"
    assert fit(tmp_path, *words.split()) == 0
    shown, errors = capsys.readouterr()
    lines = re.findall(r"^task (\d): A_k [\d.]+ %, [\d.]+ s$", shown, re.MULTILINE)
    assert lines == ["1", "2"]
    rows = re.findall(r"^│ +(\d) │ +(\d) │", shown, re.MULTILINE)
    assert rows == [("1", "2"), ("2", "4")]
    assert re.search(r"A_K [\d.]+ %, .* \(8 held-out images\)", shown)
    assert ": Cup, [bold] lid, [x] box, cup" in shown
    assert "'Cup' and 'cup'" in shown + errors + caplog.text
    assert "energy not measured" in shown
    # The folder, and the next command.
    assert shown.count(str(tmp_path / "default")) == 2
    table = (tmp_path / "default" / "version_0" / "tasks.csv").read_text()
    assert table.startswith("task,classes_seen,A_k,average,forgetting,ece")


def test_a_run_says_what_limits_it(tmp_path):
    data = digits(classes_per_task=1, max_tasks=2)
    learner = fitted(tmp_path, data, head=RidgeHead, buffer=None)
    for waiting, solving, share in (
        (7.0, 1.0, " (images 70 %)"),
        (1.0, 6.0, " (solve 60 %)"),
        (1.0, 1.0, " (backbone 80 %)"),
        (None, 9.0, ""),
    ):
        for row in learner.record.rows:
            times = {"waiting_seconds": waiting, "solve_seconds": solving}
            vars(row).update(times, train_seconds=10.0)
        assert summary_lines(learner)[-1].startswith(f"Training 20.0 s{share}, ")


@pytest.mark.parametrize(
    ("classes", "start"), [(1, "With one class "), (2, "Calibration error ")]
)
def test_figures_that_say_nothing_are_not_shown(classes, start, tmp_path):
    data = digits(classes_per_task=classes, max_tasks=1)
    lines = summary_lines(fitted(tmp_path, data, head=RidgeHead, buffer=None))
    assert len(lines) == 3
    assert lines[1].startswith(start)
