"""The run's folder, the evaluating sub-commands, and what the screen says."""

import csv
import json
import shutil

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cifnet_pl.__main__ import main
from cifnet_pl.learning.callbacks import task_metrics
from cifnet_pl.model import drawing
from tests.command_line import (
    BUFFER,
    FAST,
    assert_ends,
    assert_same_model,
    checkpoint,
    fit,
    learned,
    rows,
    run_cifnet,
)

COLUMN_NAMES = """
task classes_seen A_k average forgetting ece train_seconds
solve_seconds eval_seconds energy_kwh energy_source state_elements
buffer_elements
"""
COLUMNS = COLUMN_NAMES.split()
SUMMARY_KEYS = """
A_K A_bar A_k forgetting bwt max_drop ece train_seconds A_K_per_kwh
nll energy_kwh energy_source energy_cpu_kwh energy_gpu_kwh
energy_ram_kwh co2_kg backbone_params state_elements buffer_elements
n_tasks n_classes head backbone seed versions learned_images
"""
SUMMARY = set(SUMMARY_KEYS.split())
TAGS = ["acc/seen", "acc/average", "forgetting", "ece", "nll", "memory/state_elements"]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def run(logs):
    """A run of five tasks with a buffer and real pictures; the tests of this file only read it, or
    work on a copy.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("draw_trajectory", "draw_confusion"):
            patch.setattr(task_metrics, name, getattr(drawing, name))
        return learned(logs, *BUFFER, "--seed_everything", "3")


class TestFolder:
    def test_holds_these_files(self, run):
        names = {
            path.relative_to(run).as_posix()
            for path in run.rglob("*")
            if path.is_file()
        }
        events = {name for name in names if name.startswith("events.out.tfevents")}
        assert len(events) == 1
        expected = {
            "config.yaml",
            "checkpoints/last.ckpt",
            "tasks.csv",
            "accuracy_matrix.csv",
            "summary.json",
        }
        pictures = {"trajectory.png", "confusion.png"}
        assert names - events == expected | pictures | {
            "class_accuracy.csv",
            "confusion.csv",
            "hparams.yaml",
        }

    def test_tasks(self, run):
        table = rows(run / "tasks.csv")
        assert list(table[0])[: len(COLUMNS)] == COLUMNS
        assert [int(row["task"]) for row in table] == [1, 2, 3, 4, 5]
        assert [int(row["classes_seen"]) for row in table] == [2, 4, 6, 8, 10]
        assert all(50 < float(row["A_k"]) <= 100 for row in table)
        # The first task cannot be forgotten yet, and nothing measured energy: empty, not nan or 0.
        assert table[0]["forgetting"] == ""
        assert float(table[1]["forgetting"]) >= 0
        assert (
            {row["energy_kwh"] for row in table}
            == {row["energy_source"] for row in table}
            == {""}
        )
        mean = 0.0
        for k, row in enumerate(table):
            mean += (float(row["A_k"]) - mean) / (k + 1)
            assert float(row["average"]) == pytest.approx(mean)
            assert float(row["solve_seconds"]) <= float(row["train_seconds"])
        assert all(int(row["buffer_elements"]) <= 300 * 192 for row in table)

    def test_accuracy_matrix(self, run):
        with (run / "accuracy_matrix.csv").open(newline="") as file:
            header, *body = csv.reader(file)
        assert header == ["task", "task_1", "task_2", "task_3", "task_4", "task_5"]
        for k, row in enumerate(body):
            assert int(row[0]) == k + 1
            assert all(0 <= float(cell) <= 100 for cell in row[1 : k + 2])
            assert set(row[k + 2 :]) <= {""}

    def test_summary(self, run):
        summary = json.loads(
            (run / "summary.json").read_text(), parse_constant=pytest.fail
        )
        table = rows(run / "tasks.csv")
        assert summary.keys() >= SUMMARY
        assert summary["A_k"] == [float(row["A_k"]) for row in table]
        assert summary["A_K"] == summary["A_k"][-1]
        assert summary["A_bar"] == pytest.approx(sum(summary["A_k"]) / 5)
        assert summary["max_drop"] == max(
            a - b for a, b in zip(summary["A_k"], summary["A_k"][1:], strict=False)
        )
        assert summary["train_seconds"] == pytest.approx(
            sum(float(row["train_seconds"]) for row in table)
        )
        assert (summary["n_tasks"], summary["n_classes"], summary["seed"]) == (5, 10, 3)
        assert (summary["energy_kwh"], summary["A_K_per_kwh"]) == (None, None)
        assert sorted(summary["class_order"]) == [str(digit) for digit in range(10)]
        assert summary["tasks"] == [
            summary["class_order"][k : k + 2] for k in range(0, 10, 2)
        ]
        assert summary["state_bytes_per_element"]["buffer"] == 4
        assert summary["state_bytes_per_element"]["factors"] == 8

    def test_tensorboard(self, run):
        events = EventAccumulator(str(run))
        events.Reload()
        table = rows(run / "tasks.csv")
        for tag, column in zip(
            TAGS,
            ["A_k", "average", "forgetting", "ece", "nll", "state_elements"],
            strict=True,
        ):
            points = [(event.step, event.value) for event in events.Scalars(tag)]
            measured = [
                (int(row["task"]), float(row[column])) for row in table if row[column]
            ]
            assert [step for step, _ in points] == [step for step, _ in measured], tag
            assert [value for _, value in points] == pytest.approx(
                [value for _, value in measured], rel=1e-6
            ), tag
        assert "energy/kwh" not in events.Tags()["scalars"]  # it was not measured
        for k, row in enumerate(table):
            points = [event.value for event in events.Scalars("seconds/train")]
            assert points[k] == pytest.approx(float(row["train_seconds"]), rel=1e-6)
        with (run / "accuracy_matrix.csv").open(newline="") as file:
            matrix = list(csv.reader(file))[1:]
        for j in range(5):
            scalars = [
                (event.step, event.value)
                for event in events.Scalars(f"acc_of_task/{j + 1}")
            ]
            assert scalars == [
                (k + 1, pytest.approx(float(matrix[k][j + 1]), rel=1e-6))
                for k in range(j, 5)
            ]
        assert set(events.Tags()["images"]) == {"trajectory", "confusion"}


class TestConfig:
    def test_runs_again_as_it_is(self, run, logs):
        assert main(["fit", "--config", str(run / "config.yaml")]) == 0
        again = run.parent / "version_1"
        assert_same_model(run, again)
        assert (again / "config.yaml").read_text() == (run / "config.yaml").read_text()
        shutil.rmtree(again)

    def test_holds_no_checkpoint_after_a_resume(self, run, tmp_path):
        copy = tmp_path / "default" / "version_0"
        shutil.copytree(run, copy)
        assert (
            fit(tmp_path, *BUFFER, "--seed_everything", "3", "--data.max_tasks", "3")
            == 0
        )
        assert (
            fit(tmp_path, *BUFFER, "--seed_everything", "3", "--ckpt_path", "last") == 0
        )
        saved = yaml.safe_load(
            (tmp_path / "default" / "version_1" / "config.yaml").read_text()
        )
        assert "ckpt_path" not in saved
        assert saved["data"]["max_tasks"] is None  # as of the resume

    def test_seed_of_the_run_is_that_of_the_buffer(self, run, tmp_path):
        """Also where the configuration of a run is run again with another seed."""
        config = ["--config", str(run / "config.yaml"), "--logs", str(tmp_path)]
        assert main(["fit", *config, "--seed_everything", "4"]) == 0
        other = tmp_path / "default" / "version_0"
        assert [seed_of_buffer(folder) for folder in (run, other)] == [3, 4]
        keys = [
            checkpoint(folder)["state_dict"]["buffer.key"] for folder in (run, other)
        ]
        assert not torch.equal(*keys)

    @pytest.mark.parametrize("seed", [0, 7])
    def test_a_seed_that_is_given_stays(self, seed, tmp_path):
        (tmp_path / "c.yaml").write_text(
            f"model: {{init_args: {{buffer: {{init_args: {{seed: {seed}}}}}}}}}"
        )
        few = [*BUFFER, "--data.max_tasks", "1"]
        given = [["--model.buffer.seed", str(seed)], ["--config", f"{tmp_path}/c.yaml"]]
        for version, words in enumerate(given):
            run = learned(tmp_path, *few, *words, version=version)
            assert seed_of_buffer(run) == seed
        config = run_cifnet("fit", config=run / "config.yaml", seed_everything=5)
        assert config == 0
        assert seed_of_buffer(run.parent / "version_2") == seed


def seed_of_buffer(run):
    return json.loads((run / "summary.json").read_text())["buffer_settings"]["seed"]


class TestEvaluation:
    @pytest.mark.parametrize(
        ("command", "file"), [("validate", "last"), ("test", "checkpoints/last.ckpt")]
    )
    def test_gives_the_accuracy_of_the_run(self, run, command, file, capsys):
        path = file if file == "last" else str(run / file)
        config = str(run / "config.yaml")
        assert main([command, "--config", config, "--ckpt_path", path]) == 0
        total = json.loads((run / "summary.json").read_text())["A_K"]
        shown = [
            line.split("│")
            for line in capsys.readouterr().out.splitlines()
            if "all" in line
        ]
        assert [cell.strip() for cell in shown[0][1:4]] == ["all", "10", f"{total:.1f}"]
        assert [path.name for path in run.parent.iterdir()] == [
            "version_0"
        ]  # nothing new

    def test_predictions(self, run, capsys):
        assert (
            main(
                ["predict", "--config", str(run / "config.yaml"), "--ckpt_path", "last"]
            )
            == 0
        )
        table = rows(run / "predictions.csv")
        assert list(table[0]) == ["file", "true_class", "class", "probability"]
        right = [row["true_class"] == row["class"] for row in table]
        assert 100 * sum(right) / len(right) == pytest.approx(
            json.loads((run / "summary.json").read_text())["A_K"]
        )
        assert len({row["file"] for row in table}) == len(table)
        assert all(0.1 <= float(row["probability"]) <= 1 for row in table)
        assert (
            capsys.readouterr()
            .out.strip()
            .endswith(f"{len(table)} predictions in {run / 'predictions.csv'}")
        )

    def test_last_is_the_run_of_the_config_else_the_newest(
        self, logs, run, tmp_path, capsys
    ):
        shutil.copytree(run, tmp_path / "default" / "version_0")
        newer = learned(
            tmp_path,
            "--data.max_tasks",
            "1",
            *BUFFER,
            "--seed_everything",
            "3",
            version=1,
        )
        for config, classes in (
            (tmp_path / "default" / "version_0", "10"),
            (newer, "2"),
        ):
            assert (
                run_cifnet("test", config=config / "config.yaml", ckpt_path="last") == 0
            )
            assert f"│  all │ {classes:>7} │" in capsys.readouterr().out
        options = [*FAST, *BUFFER, "--seed_everything", "3", "--logs", str(tmp_path)]
        assert_ends(
            main(["test", *options, "--ckpt_path", "last"]),
            0,
            "│  all │       2 │",
            capsys,
        )


def test_the_screen_of_a_run(tmp_path, capsys):
    folder = learned(tmp_path, *BUFFER, "--data.max_tasks", "2")
    lines = capsys.readouterr()
    assert lines.err == ""
    shown = lines.out.splitlines()
    assert shown[0] == "4 classes in 2 tasks on cpu, 192 features"
    header = [cell.strip() for cell in shown[2].strip("┃").split("┃")]
    assert header == [
        "task",
        "classes",
        "A_k %",
        "Ā %",
        "forgetting",
        "ECE %",
        "seconds",
    ]
    summary = json.loads((folder / "summary.json").read_text())
    assert f"A_K {summary['A_K']:.1f} %" in lines.out
    assert f"Ā {summary['A_bar']:.1f} %" in lines.out
    stored = summary["buffer_elements"]  # float32; the statistics are float64
    size = (summary["state_elements"] - stored) * 8 + stored * 4
    assert f"state {size / 1e6:.2f} MB" in lines.out
    assert shown[-2] == f"Run folder {folder}"
    assert shown[-1] == f"next: cifnet export --model {folder} --output MODEL"


def test_further_loggers_are_kept(tmp_path):
    options = ["--data.max_tasks", "2", "--trainer.logger", "CSVLogger"]
    options += ["--trainer.logger.save_dir", str(tmp_path / "csv")]
    learned(tmp_path, *options)
    (metrics,) = (tmp_path / "csv").rglob("metrics.csv")
    assert [float(row["acc/seen"]) for row in rows(metrics) if row["acc/seen"]]


SLURM_JOB = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NAME": "jupyter",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}


def test_one_process_of_an_interactive_slurm_job(tmp_path, monkeypatch):
    """A notebook, a shell or a batch script in a job of eight tasks runs by itself."""
    for name, value in SLURM_JOB.items():
        monkeypatch.setenv(name, value)
    learned(tmp_path, "--data.max_tasks", "1")


def test_slurm_tasks_that_do_not_fit_are_one_sentence(tmp_path, monkeypatch, capsys):
    """A step of eight tasks without --ntasks-per-node, which Lightning refuses."""
    for name, value in (SLURM_JOB | {"SLURM_STEP_NUM_TASKS": "8"}).items():
        monkeypatch.setenv(name, value)
    assert_ends(fit(tmp_path, "--data.max_tasks", "1"), 2, "--ntasks-per-node", capsys)
