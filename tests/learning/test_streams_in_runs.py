"""Streams in whole runs: exact heads absorb what returns, others refuse, metrics stay defined, runs
go on.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cifnet_pl.__main__ import main
from cifnet_pl.data.streams import Blurry, Domains, Returning, Stream, TaskFree
from cifnet_pl.heads import ACILHead, KNNHead, RidgeHead, SLDAHead
from tests.cli.test_option_errors import one_sentence
from tests.command_line import assert_same_model, fit, learned, measurements, rows
from tests.data.layouts import domain_folders
from tests.lightning_runs import digits, module, trainer

RIDGE = ["--model.head", "RidgeHead"]


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        (Returning(0.5), RidgeHead),
        (Blurry(40, 30), RidgeHead),
        (TaskFree(400), RidgeHead),
        (Returning(0.5), SLDAHead),
        (Blurry(40, 30), KNNHead),
        (Blurry(40, 30), partial(ACILHead, width=64)),
    ],
)
def test_what_returns_is_learned_as_if_it_had_come_at_once(
    kind: Stream, head: Any, tmp_path: Path
) -> None:
    one = module(head=head, buffer=None)
    two = module(head=head, buffer=None)
    trainer(tmp_path).fit(one, datamodule=digits(stream=kind))
    trainer(tmp_path).fit(two, datamodule=digits())
    assert sorted(one.class_names) == sorted(two.class_names)
    z = torch.rand(20, 192)
    order = [one.class_names.index(name) for name in two.class_names]
    scores = [made.head.probabilities(z) for made in (one, two)]
    assert torch.allclose(scores[0][:, order], scores[1], atol=1e-6)
    assert one.evaluation.accuracy == pytest.approx(two.evaluation.accuracy, abs=0.3)
    counts = one.head.class_counts()
    assert sum(counts.values()) == len(digits().source.train)


@pytest.mark.parametrize("head", ["CIFNetHead", "DSALHead", "LogisticHead"])
def test_heads_that_cannot_say_so_before_anything_is_embedded(head, tmp_path, capsys):
    options = ["--model.head", head, "--model.buffer", "CalibrationBuffer"]
    assert fit(tmp_path, *options, "--data.stream", "Returning") == 1
    message = one_sentence(capsys)
    assert "--data.stream Returning" in message
    assert f"{head} cannot add" in message
    assert not list(tmp_path.glob("default/*/tasks.csv"))


def test_trained_networks_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["--model", "cifnet_pl.iterative.FinetuneModule", "--data.stream", "Blurry"]
    assert fit(tmp_path, *line) == 2
    message = capsys.readouterr().err
    assert "FinetuneModule" in message
    assert "--data.stream Blurry" in message


def test_options_of_a_stream_and_its_files(tmp_path: Path) -> None:
    run = learned(
        tmp_path, *RIDGE, "--data.stream", "TaskFree", "--data.stream.every", "300"
    )
    online = rows(run / "prequential.csv")
    assert [row["task"] for row in online] == ["2", "3", "4", "5"]
    assert sum(int(row["samples"]) for row in online) == 1438 - 300
    assert all(0 <= float(row["accuracy"]) <= 100 for row in online)
    right = sum(int(row["samples"]) * float(row["accuracy"]) for row in online)
    assert float(online[-1]["accuracy_so_far"]) == pytest.approx(right / (1438 - 300))
    summary = json.loads((run / "summary.json").read_text())
    assert summary["n_tasks"] == 5
    assert summary["A_K"] > 85
    assert "TaskFree" in (run / "config.yaml").read_text()
    bundle = tmp_path / "bundle"
    assert main(["export", "--model", str(run), "--output", str(bundle)]) == 0


def test_a_run_that_was_stopped_goes_on_to_the_same_end(tmp_path: Path) -> None:
    options = [*RIDGE, "--data.stream", "Returning"]
    whole = learned(tmp_path / "whole", *options)
    first = learned(tmp_path / "parts", *options, "--data.max_tasks", "3")
    assert fit(tmp_path / "parts", *options, "--ckpt_path", "last") == 0
    assert_same_model(whole, first)
    assert measurements(whole) == measurements(first)
    online = [(run / "prequential.csv").read_text() for run in (whole, first)]
    assert online[0] == online[1]


def test_domains_have_an_accuracy_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "images"
    domain_folders(root, monkeypatch)
    model = module(head=RidgeHead, buffer=None)
    data = digits(
        source="domains", root=str(root), stream=Domains(), classes_per_task=3
    )
    trainer(tmp_path).fit(model, datamodule=data)
    assert [len(names) for names in model.learned_tasks] == [3, 0]
    assert model.evaluation.task_accuracy == [100.0, 100.0]
    assert sum(model.head.class_counts().values()) == 20
    assert data.n_tasks == 2
