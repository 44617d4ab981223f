"""Pages of the documentation that are one script each: they run, and end in what they say."""

import re
from pathlib import Path

import pytest
import yaml

from cifnet_pl.__main__ import main
from cifnet_pl.data.streams import Blurry
from cifnet_pl.learning.callbacks.task_metrics import configuration
from cifnet_pl.model import classifier
from cifnet_pl.model.export import Export, ExportCheck
from cifnet_pl.report.results import setting_of
from cifnet_pl.report.runs import read_run
from tests.command_line import rows, summary_of
from tests.lightning_runs import digits, module

DOCS = Path(__file__).parents[2] / "docs"
CODE = re.compile(r"```python\n(.*?)```", re.S)


def run_page(text, folder):
    """Run the Python of a page in a folder; its variables. Other tests export a graph, which takes
    seconds.
    """
    names = {"__name__": "page"}
    exported = Export(b"graph", ExportCheck(0.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifier, "onnx_bytes", lambda *_: exported)
        patch.chdir(folder)
        patch.delenv("PL_GLOBAL_SEED", raising=False)
        exec("\n".join(CODE.findall(text)), names)
    return names


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The folder where the script of docs/start/python.md ran, and its variables."""
    folder = tmp_path_factory.mktemp("page")
    text = (DOCS / "start/python.md").read_text(encoding="utf-8")
    return folder, run_page(text, folder)


def test_the_page_runs(page):
    folder, names = page
    assert names["module"].evaluation.accuracy > 85
    assert names["model"].class_names == names["module"].class_names
    assert names["scores"].shape == (100, 4)
    assert names["vectors"].shape == (3, 1280)
    assert (names["files"], names["unreadable"]) == ([None] * 3, {})
    assert "digits, 2 cls/task" in (folder / "report" / "report.md").read_text()
    # What validate returned is what the run measured.
    summary = summary_of(folder / "runs" / "version_0")
    last = rows(folder / "runs" / "version_0" / "accuracy_matrix.csv")[-1]
    metrics = names["metrics"]
    for ours, theirs in (("A_k", "A_K"), ("ece", "ece"), ("nll", "nll")):
        assert metrics[ours] == pytest.approx(summary[theirs])
    for j in range(1, 6):
        assert metrics[f"A_k{j}"] == pytest.approx(float(last[f"task_{j}"]))


def test_the_command_line_runs_its_configuration_again(page, tmp_path):
    folder, _ = page
    run = folder / "runs" / "version_0"
    more = ["--logs", str(tmp_path), "--energy.enabled", "false"]
    more += ["--model.engine", "torch"]
    assert main(["fit", "--config", str(run / "config.yaml"), *more]) == 0
    again = tmp_path / "default" / "version_0"
    ours = read_run(run)
    theirs = read_run(again)
    assert ours.summary["A_k"] == theirs.summary["A_k"]
    assert setting_of(ours) == setting_of(theirs)


def test_streams_and_buffers_are_in_the_configuration():
    learner = module()
    learner.data = digits(stream=Blurry(0, 50, 3))
    result = yaml.safe_load(yaml.safe_dump(configuration(learner)))
    options = {"disjoint": 0, "blurry": 50, "seed": 3, "every": None}
    stream = {"class_path": "cifnet_pl.data.streams.Blurry", "init_args": options}
    assert result["data"]["stream"] == stream
    assert result["model"]["init_args"]["buffer"]["init_args"]["capacity"] == 300


@pytest.mark.system
def test_arrays_end_in_the_table_and_the_figure_of_their_page(tmp_path):
    text = (DOCS / "start/first_experiment.md").read_text(encoding="utf-8")
    lines = "\n".join(CODE.findall(text)).splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 40
    run_page(text, tmp_path)
    table = (tmp_path / "report" / "tables" / "accuracy.md").read_text(encoding="utf-8")
    figure = tmp_path / "report" / "figures" / "trajectory_arrays_2_cls_task.svg"
    assert figure.stat().st_size > 10_000
    documented = re.findall(r"^\| (.+?) \| (\S+ ± \S+) \| (\S+) \|$", text, re.M)
    for method, average, final in documented:
        row = f"| {method} | measured | {average} | {final} |"
        assert row in re.sub(" +", " ", table)


def test_the_page_on_scikit_learn_runs(tmp_path):
    text = (DOCS / "how_to/scikit_learn.md").read_text(encoding="utf-8")
    names = run_page(text, tmp_path)
    assert names["model"].score(names["X"], names["y"]) > 0.95
    assert (tmp_path / "digits" / "config.json").is_file()
