"""A split for tuning is taken from the training images; no test image is looked at, and every table says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cifnet_pl.data import CIFNetDataModule
from cifnet_pl.data.plan import without_test_images
from cifnet_pl.data.sets import ArraySet, Grouping, Source
from cifnet_pl.report.tables import all_tables
from cifnet_pl.report.write import read_study
from cifnet_pl.utilities.errors import UsageError
from tests.command_line import make_photos
from tests.report.synthetic import write_run


def test_the_test_images_are_left_alone() -> None:
    whole, tuned = (CIFNetDataModule("digits", tune=tune).source for tune in (None, 0.2))
    learned, measured = set(tuned.train.names), set(tuned.val.names)
    assert learned | measured == set(whole.train.names)
    assert not learned & measured
    assert not measured & set(whole.val.names)
    for label, rows in whole.train.rows_of.items():
        assert len(tuned.val.rows_of[label]) == round(0.2 * len(rows))
    again = CIFNetDataModule("digits", tune=0.2).source
    assert (again.val.names, again.val.labels.tolist()) == (tuned.val.names, tuned.val.labels.tolist())


def test_domains_and_tasks_go_with_their_samples() -> None:
    labels = np.repeat([0, 1], 20)
    domain = np.tile([0, 1], 20)
    images = ArraySet(lambda row: None, labels.tolist())  # type: ignore[arg-type,return-value]
    source = Source(["a", "b"], images, images.subset(np.arange(2)), Grouping(["x", "y"], domain, domain[:2]))
    tuned = without_test_images(source, 0.5, 0)
    assert tuned.domains is not None
    for split, domains in ((tuned.train, tuned.domains.train), (tuned.val, tuned.domains.val)):
        assert domains.tolist() == [int(name) % 2 for name in split.names]
        assert [np.sum((split.labels == c) & (domains == d)) for c in (0, 1) for d in (0, 1)] == [5] * 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tune": 1.0}, "expected a share"),
        ({"tune": -0.1}, "expected a share"),
        ({"tune": 0.2, "group": "folder"}, "leave one of them out"),
    ],
)
def test_what_cannot_be_split_is_said(tmp_path: Path, options: dict[str, object], said: str) -> None:
    source = "folder" if "group" in options else "digits"
    root = make_photos(tmp_path, ["ant", "bee"], per_class=4)
    with pytest.raises(UsageError, match=said):
        CIFNetDataModule(source, root=str(root), classes_per_task=1, **options)  # type: ignore[arg-type]


def test_every_table_of_results_says_so(tmp_path: Path) -> None:
    for head in ("CIFNetHead", "RidgeHead"):
        for tune in (None, 0.2):
            folder = tmp_path / f"{head}{tune}" / "version_0"
            write_run(folder, head=head, tasks=3, data={"tune": tune}, final=60.0 if tune else 50.0)
    write_run(tmp_path / "bare" / "version_0", tasks=3, data={"tune": 0.2}, buffer=None)
    tables = all_tables(read_study([tmp_path]))
    mark = "on 20 % of the training images (tuning)"
    for name in ("accuracy", "ablation", "runs", "settings"):
        (table,) = (table for section in tables.values() for table in section if table.name == name)
        text = [column.header for column in table.columns] + [str(cell) for row in table.rows for cell in row]
        assert any(mark in sentence for sentence in text), name
    for section in ("Efficiency", "Memory", "All results"):
        marked = [table for table in tables[section] if mark in table.title]
        assert marked, section
