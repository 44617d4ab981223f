"""A metric of the user is measured and shown everywhere; docs/how_to/custom_metric.md has it."""

import re
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy

from cifnet_pl import CIFNetModule
from cifnet_pl.__main__ import main
from cifnet_pl.learning.columns import import_metrics
from cifnet_pl.utilities.errors import UsageError
from tests.command_line import assert_ends, fit, rows, summary_of
from tests.lightning_runs import digits, module, trainer

PAGE = Path(__file__).parents[2] / "docs/how_to/custom_metric.md"
METRICS = ["--metrics", "my_metrics.WorstClass", "my_metrics.macro_f1"]


@pytest.fixture(autouse=True)
def folder(cwd, monkeypatch) -> Path:
    """The current folder, with the file of the page."""
    page = PAGE.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (cwd / "my_metrics.py").write_text(code)
    monkeypatch.syspath_prepend(cwd)
    return cwd


def test_it_is_shown_wherever_metrics_are(folder, capsys, monkeypatch):
    monkeypatch.setattr("cifnet_pl.report.figures.all_pictures", lambda _: {})
    assert " ".join(METRICS) in PAGE.read_text(encoding="utf-8")
    # The first of them is stopped after a task, and goes on.
    for head, tasks in (("RidgeHead", "1"), ("RidgeHead", "2"), ("NCMHead", "2")):
        options = ["--model.head", head, "--data.max_tasks", tasks]
        assert fit(folder / head, *options, *METRICS, "--ckpt_path", "last") == 0
    shown = capsys.readouterr().out
    assert re.search(r"^Worst class [\d.]+$", shown, re.MULTILINE)
    assert re.search(r"^Macro f1 [\d.]+$", shown, re.MULTILINE)
    run = folder / "RidgeHead" / "default" / "version_0"
    by_task = [float(row["worst_class"]) for row in rows(run / "tasks.csv")]
    table = rows(run / "class_accuracy.csv")
    for task, value in enumerate(by_task, 1):
        accuracies = [float(row[f"after_task_{task}"] or 100) for row in table]
        assert value == pytest.approx(min(accuracies))
    summary = summary_of(run)
    assert summary["metrics"]["worst_class"] == by_task[-1]
    board = EventAccumulator(str(run)).Reload()
    logged = [event.value for event in board.Scalars("metrics/worst_class")]
    assert logged == pytest.approx(by_task)
    words = ["report", "RidgeHead", "NCMHead", "--output", "report"]
    assert main([*words, "--compare", "Exact ridge", "NCM"]) == 0
    assert "worst class, over seeds: Exact ridge " in capsys.readouterr().out
    (results,) = (folder / "report/tables").glob("results_*.csv")
    assert float(rows(results)[0]["worst class"]) == pytest.approx(by_task[-1])
    assert "worst class" in (folder / "report/report.html").read_text()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_metrics.WorstCase", "cannot import my_metrics.WorstCase"),
        ("my_metrics.Metric", "metric metric fails"),
        ("torchmetrics.classification.MulticlassROC", "metric multiclass_roc fails"),
    ],
)
def test_one_that_cannot_be_used_is_named_first(name, said, folder, capsys, watch):
    batches = watch(CIFNetModule, "training_step", lambda *_: 1)
    assert_ends(fit(folder, "--metrics", name), 2, said, capsys)
    assert batches == []


def test_names_are_those_of_columns_and_differ():
    (name,) = import_metrics(["torchmetrics.classification.MulticlassF1Score"])
    assert name == "multiclass_f1_score"
    with pytest.raises(UsageError, match="a column macro_f1 already"):
        import_metrics(["my_metrics.macro_f1"] * 2)


class Endless(MulticlassAccuracy):
    def compute(self) -> Tensor:
        return torch.tensor(torch.inf)


def test_nothing_is_measured_of_one_class_or_where_it_is_not_finite(folder):
    learner = module(buffer=None)
    learner.metrics = import_metrics(METRICS[1:]) | {"endless": Endless}
    trainer(folder).fit(learner, datamodule=digits(classes_per_task=1, max_tasks=2))
    first, second = learner.record.rows
    assert not hasattr(first, "macro_f1")
    assert second.macro_f1 > 0.9
    assert second.endless is None
