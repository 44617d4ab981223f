"""Streams in whole runs: exact heads absorb what returns, others refuse, metrics stay defined, runs
go on.
"""

import json
from functools import partial

import numpy as np
import pytest
import torch

from cifnet_pl.__main__ import main
from cifnet_pl.data.streams import Blurry, Domains, Returning, TaskFree
from cifnet_pl.heads import ACILHead, KNNHead, RidgeHead
from cifnet_pl.iterative import FinetuneModule
from cifnet_pl.utilities.errors import CifnetError
from tests.command_line import assert_same_model, fit, learned, measurements, rows
from tests.data.layouts import domain_folders
from tests.lightning_runs import digits, fitted, module, trainer

RIDGE = ["--model.head", "RidgeHead"]


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        (Returning(0.5), RidgeHead),
        (TaskFree(400), KNNHead),
        (Blurry(40, 30), partial(ACILHead, width=64)),
    ],
)
def test_what_returns_is_learned_as_if_it_had_come_at_once(kind, head, tmp_path):
    learner = fitted(tmp_path, digits(stream=kind), head=head, buffer=None)
    source = learner.data.source
    images = source.train
    pixels = np.stack([images.image(row).square(8) for row in range(len(images))])
    z = learner.backbone(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    once = head(z.shape[1])
    once.begin_task(list(range(10)))
    label_of = [learner.class_names.index(name) for name in source.class_names]
    once.observe(z, torch.tensor(label_of)[images.labels])
    once.solve()
    scores = [made.probabilities(z[:20]) for made in (learner.head, once)]
    assert torch.allclose(*scores, atol=1e-6)
    assert sum(learner.head.class_counts().values()) == len(images)


@pytest.mark.parametrize(
    ("learner", "stream", "said"),
    [
        (module, Returning(0.5), "with --data.stream Returning .* CIFNetHead cannot add"),
        (partial(FinetuneModule, backbone="random:resnet32_cifar"), Blurry(40, 30),
         "FinetuneModule learns .* --data.stream Blurry"),
    ],
)  # fmt: skip
def test_what_cannot_says_so_before_it_embeds(learner, stream, said, tmp_path):
    made = learner()
    with pytest.raises(CifnetError, match=said):
        trainer(tmp_path).fit(made, datamodule=digits(stream=stream))
    assert not made.learned_tasks


TASK_FREE = [*RIDGE, "--data.stream", "TaskFree", "--data.stream.every", "300"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of five tasks in which classes return."""
    return learned(tmp_path_factory.mktemp("whole"), *TASK_FREE)


def test_options_of_a_stream_and_its_files(whole, tmp_path):
    online = rows(whole / "prequential.csv")
    assert [row["task"] for row in online] == ["2", "3", "4", "5"]
    assert sum(int(row["samples"]) for row in online) == 1438 - 300
    assert all(0 <= float(row["accuracy"]) <= 100 for row in online)
    right = sum(int(row["samples"]) * float(row["accuracy"]) for row in online)
    assert float(online[-1]["accuracy_so_far"]) == pytest.approx(right / (1438 - 300))
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["n_tasks"] == 5
    assert summary["A_K"] > 85
    shares = [float(row["accuracy"]) for row in online]
    assert -100 < summary["forward_transfer"] < np.mean(shares)
    assert "TaskFree" in (whole / "config.yaml").read_text()
    bundle = tmp_path / "bundle"
    assert main(["export", "--model", str(whole), "--output", str(bundle)]) == 0


def test_a_run_that_was_stopped_goes_on_to_the_same_end(whole, tmp_path):
    first = learned(tmp_path, *TASK_FREE, "--data.max_tasks", "3")
    assert fit(tmp_path, *TASK_FREE, "--ckpt_path", "last") == 0
    assert_same_model(whole, first)
    assert measurements(whole) == measurements(first)
    online = [(run / "prequential.csv").read_text() for run in (whole, first)]
    assert online[0] == online[1]


def test_domains_have_an_accuracy_each(tmp_path):
    root = tmp_path / "images"
    domain_folders(root)
    options = {"source": "domains", "root": str(root), "stream": Domains()}
    data = digits(classes_per_task=3, **options)
    model = fitted(tmp_path, data, head=RidgeHead, buffer=None)
    assert [len(names) for names in model.learned_tasks] == [3, 0]
    assert model.evaluation.task_accuracy == [100.0, 100.0]
    assert sum(model.head.class_counts().values()) == 20
    assert data.n_tasks == 2
