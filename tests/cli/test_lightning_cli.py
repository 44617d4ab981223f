"""The run's folder, the evaluating sub-commands, and what the screen says."""

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cifnet_pl.cli.lightning_cli import CIFNetCLI
from cifnet_pl.utilities.run_folders import place_evaluation
from tests.command_line import (
    BUFFER,
    assert_same_model,
    learned,
    prepared,
    rows,
    run_cifnet,
)

COLUMN_NAMES = """
task classes_seen A_k average forgetting ece train_seconds
solve_seconds eval_seconds energy_kwh energy_source state_elements
buffer_elements
"""
COLUMNS = COLUMN_NAMES.split()
SUMMARY = {"backbone_params", "head", "backbone", "versions", "learned_images"}
FILES = """
config.yaml checkpoints/last.ckpt hparams.yaml tasks.csv summary.json
accuracy_matrix.csv class_accuracy.csv confusion.csv
trajectory.png confusion.png
"""
TAGS = {
    "acc/seen": "A_k",
    "acc/average": "average",
    "forgetting": "forgetting",
    "ece": "ece",
    "nll": "nll",
    "memory/state_elements": "state_elements",
    "seconds/train": "train_seconds",
}


@pytest.fixture(scope="module")
def shown_run(tmp_path_factory):
    """The folder of a run of three tasks with a buffer and another logger, and its screen."""
    logs = tmp_path_factory.mktemp("logs")
    options = [*BUFFER, "--seed_everything", "3", "--data.max_tasks", "3"]
    options += ["--trainer.logger", "CSVLogger"]
    options += ["--trainer.logger.save_dir", str(logs / "csv")]
    screen = io.StringIO()
    errors = io.StringIO()
    with redirect_stdout(screen), redirect_stderr(errors):
        run = learned(logs, *options)
    assert errors.getvalue() == ""
    return run, screen.getvalue()


@pytest.fixture(scope="module")
def run(shown_run):
    return shown_run[0]


@pytest.fixture(scope="module")
def summary(run):
    return json.loads((run / "summary.json").read_text(), parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def table(run):
    return rows(run / "tasks.csv")


def test_the_folder_holds_these_files(run):
    files = [path for path in run.rglob("*") if path.is_file()]
    names = {path.relative_to(run).as_posix() for path in files}
    (events,) = (name for name in names if name.startswith("events.out.tfevents"))
    assert names == {events, *FILES.split()}


def test_the_table_of_tasks(table):
    assert list(table[0])[: len(COLUMNS)] == COLUMNS
    assert [int(row["task"]) for row in table] == [1, 2, 3]
    assert [int(row["classes_seen"]) for row in table] == [2, 4, 6]
    assert all(50 < float(row["A_k"]) <= 100 for row in table)
    # The first task cannot be forgotten yet, and nothing measured energy: empty, not nan or 0.
    assert table[0]["forgetting"] == ""
    assert float(table[1]["forgetting"]) >= 0
    assert {row["energy_kwh"] + row["energy_source"] for row in table} == {""}
    accuracies = [float(row["A_k"]) for row in table]
    for k, row in enumerate(table, 1):
        assert float(row["average"]) == pytest.approx(sum(accuracies[:k]) / k)
        assert float(row["solve_seconds"]) <= float(row["train_seconds"])


def test_the_summary(summary, table):
    assert summary.keys() >= SUMMARY
    accuracies = [float(row["A_k"]) for row in table]
    assert summary["A_k"] == accuracies
    assert summary["A_K"] == accuracies[-1]
    assert summary["A_bar"] == pytest.approx(sum(accuracies) / 3)
    falls = [a - b for a, b in pairwise(accuracies)]
    assert summary["max_drop"] == max(falls)
    seconds = sum(float(row["train_seconds"]) for row in table)
    assert summary["train_seconds"] == pytest.approx(seconds)
    assert (summary["n_tasks"], summary["n_classes"], summary["seed"]) == (3, 6, 3)
    assert (summary["energy_kwh"], summary["A_K_per_kwh"]) == (None, None)
    order = summary["class_order"]
    assert sorted(order) == [str(digit) for digit in range(6)]
    assert summary["tasks"] == [order[k : k + 2] for k in (0, 2, 4)]
    assert summary["state_bytes_per_element"]["buffer"] == 4
    assert summary["state_bytes_per_element"]["factors"] == 8


def test_tensorboard(run, table):
    events = EventAccumulator(str(run))
    events.Reload()
    tags = events.Tags()

    def points(tag):
        return [(event.step, event.value) for event in events.Scalars(tag)]

    for tag, column in TAGS.items():
        assert points(tag) == [
            (int(row["task"]), pytest.approx(float(row[column]), rel=1e-6))
            for row in table
            if row[column]
        ], tag
    assert "energy/kwh" not in tags["scalars"]  # it was not measured
    for j in (1, 2, 3):
        column = [row[f"task_{j}"] for row in rows(run / "accuracy_matrix.csv")]
        assert points(f"acc_of_task/{j}") == [
            (k, pytest.approx(float(column[k - 1]), rel=1e-6)) for k in range(j, 4)
        ]
    assert set(tags["images"]) == {"trajectory", "confusion"}


def test_the_configuration_runs_again_as_it_is(run, tmp_path):
    config = run / "config.yaml"
    assert run_cifnet("fit", config=config, logs=tmp_path) == 0
    again = tmp_path / "default" / "version_0"
    assert_same_model(run, again)
    saved = [yaml.safe_load((f / "config.yaml").read_text()) for f in (run, again)]
    assert saved[0] | {"logs": str(tmp_path)} == saved[1]


def test_the_seed_of_the_run_is_that_of_the_buffer(run, summary, tmp_path):
    """Unless it is given, and where a run's configuration is run again with another seed."""
    assert summary["buffer_settings"]["seed"] == 3
    file = run / "config.yaml"
    for words, seed in (([], 4), (["--model.buffer.seed", "0"], 0), ([], 0)):
        given = prepared("--config", str(file), "--seed_everything", "4", *words)
        CIFNetCLI.before_instantiate_classes(given)
        assert given.config.model.init_args.buffer.init_args.seed == seed
        file = tmp_path / "config.yaml"
        file.write_text(given._stored_config())


def test_an_evaluation_gives_the_accuracy_of_the_run(run, summary, capsys):
    given = {"config": run / "config.yaml"}
    given["ckpt_path"] = run / "checkpoints/last.ckpt"
    assert run_cifnet("test", **given) == 0
    said = f"Accuracy {summary['A_K']:.1f} %, calibration error "
    assert said in capsys.readouterr().out
    assert list(run.parent.iterdir()) == [run]  # nothing new


def test_predictions(run, summary, capsys):
    code = run_cifnet("predict", config=run / "config.yaml", ckpt_path="last")
    assert code == 0
    file = run / "predictions.csv"
    table = rows(file)
    file.unlink()
    assert list(table[0]) == ["file", "true_class", "class", "probability"]
    right = [row["true_class"] == row["class"] for row in table]
    assert 100 * sum(right) / len(right) == pytest.approx(summary["A_K"])
    assert len({row["file"] for row in table}) == len(table)
    assert all(0.1 <= float(row["probability"]) <= 1 for row in table)
    said = capsys.readouterr().out.strip()
    assert said.endswith(f"{len(table)} predictions in {file}")


def test_last_is_the_run_of_the_config_else_the_newest(tmp_path):
    first, second, third = (tmp_path / f"version_{number}" for number in range(3))
    for run in (first, second):
        (run / "checkpoints").mkdir(parents=True)
        (run / "checkpoints" / "last.ckpt").touch()
    third.mkdir()  # it has no checkpoint
    for configs, chosen in (
        ([first / "config.yaml"], first),
        ([tmp_path / "mine.yaml"], second),
        (None, second),
    ):
        place = place_evaluation(tmp_path, "last", configs)
        assert place.folder == chosen
        assert place.checkpoint == chosen / "checkpoints" / "last.ckpt"


def test_the_screen_of_a_run(shown_run, summary):
    folder, screen = shown_run
    shown = screen.splitlines()
    assert shown[0] == "6 classes in 3 tasks on cpu, 192 features"
    (header,) = [line for line in shown if line.startswith("┃")]
    header = [cell.strip() for cell in header.strip("┃").split("┃")]
    columns = ["task", "classes", "A_k %", "Ā %", "forgetting", "ECE %", "seconds"]
    assert header == columns
    assert f"A_K {summary['A_K']:.1f} %" in screen
    assert f"Ā {summary['A_bar']:.1f} %" in screen
    assert re.search(r"\nForgetting [\d.-]+ points, calibration error ", screen)
    assert re.search(r"\nTraining [\d.]+ s \(\w+ \d+ %\), ", screen)
    stored = summary["buffer_elements"]  # float32; the statistics are float64
    size = (summary["state_elements"] - stored) * 8 + stored * 4
    assert f"state {size / 1e6:.2f} MB" in screen
    assert shown[-2] == f"Run folder {folder}"
    assert shown[-1] == f"next: cifnet export --model {folder} --output MODEL"


def test_further_loggers_are_kept(run):
    (metrics,) = (run.parents[1] / "csv").glob("**/version_0/metrics.csv")
    assert [float(row["acc/seen"]) for row in rows(metrics) if row["acc/seen"]]
