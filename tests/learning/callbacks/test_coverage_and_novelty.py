"""Unknown images and prediction sets of a run, against those of the model that it stores."""

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cifnet_pl.heads import NCMHead, RidgeHead
from cifnet_pl.learning.callbacks import CoverageAndNoveltyMetrics
from cifnet_pl.utilities.errors import CifnetError
from tests.command_line import BUFFER, learned, make_images, rows, summary_of
from tests.lightning_runs import digits, fitted

COLUMNS = ["set_size", "set_coverage"]
COLUMNS += ["known_rejected", "unknown_auroc", "unknown_fpr95"]
TAGS = {"prediction_sets/size": "set_size"}
TAGS |= {"unknown/auroc": "unknown_auroc", "unknown/fpr95": "unknown_fpr95"}
RIDGE = ["--model.head", "RidgeHead", "--data.max_tasks", "2"]


def test_a_calibrated_run_with_unknown_images(tmp_path, capsys):
    unknown = make_images(tmp_path / "unknown", ["yak", "zebu"])
    options = ["--model.calibrate", "true", "--data.unknown", str(unknown)]
    run = learned(tmp_path, *RIDGE, *BUFFER, *options)
    table = rows(run / "tasks.csv")
    summary = summary_of(run)
    assert [name for name in table[0] if name in COLUMNS] == COLUMNS
    for row in table:
        assert 1 <= float(row["set_size"]) <= int(row["classes_seen"])
        assert float(row["set_coverage"]) > 88
        assert float(row["known_rejected"]) < 12
        assert float(row["unknown_auroc"]) > 95
    last = {name: float(table[-1][name]) for name in COLUMNS}
    assert {name: summary[name] for name in COLUMNS} == last
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "AUROC" in line]
    assert f"{last['unknown_auroc']:.1f} %" in line
    assert f"{last['unknown_fpr95']:.1f} %" in line
    events = EventAccumulator(str(run)).Reload()
    for tag, name in TAGS.items():
        logged = [event.value for event in events.Scalars(tag)]
        assert logged == pytest.approx([float(row[name]) for row in table], abs=1e-3)
    classes = rows(run / "prediction_sets.csv")
    images = [row["test_images"] for row in rows(run / "class_accuracy.csv")]
    assert [row["test_images"] for row in classes] == images
    for name, mean in (("coverage", "set_coverage"), ("set_size", "set_size")):
        values = [float(row[name]) for row in classes]
        weights = [int(count) for count in images]
        assert np.average(values, weights=weights) == pytest.approx(summary[mean])


def test_without_unknown_images_and_calibration_nothing_is_measured(tmp_path):
    data = digits(max_tasks=1)
    learner = fitted(tmp_path, data, CoverageAndNoveltyMetrics(), head=RidgeHead)
    (row,) = learner.record.rows
    assert [getattr(row, name) for name in COLUMNS] == [None] * 5


@pytest.mark.parametrize(
    ("head", "folder", "options", "said"),
    [
        (RidgeHead, "nothing", {}, "--data.unknown: .*/nothing"),
        (RidgeHead, "bad", {}, "bad/1.png.* .*bad/2.png"),
        (RidgeHead, "bad", {"on_corrupt": "skip"}, "none of the images of .*/bad"),
        (NCMHead, "bad", {}, "NCMHead .*novelty"),
    ],
)
def test_refusals(head, folder, options, said, tmp_path):
    (tmp_path / "bad").mkdir()
    for name in ("1.png", "2.png"):
        (tmp_path / "bad" / name).write_bytes(b"no image")
    fed = digits(unknown=str(tmp_path / folder), **options)
    with pytest.raises(CifnetError, match=said):
        fitted(tmp_path, fed, CoverageAndNoveltyMetrics(), head=head, buffer=None)
