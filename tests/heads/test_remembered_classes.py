"""Classes that RidgeHead remembers are forgotten without their samples, as if they had never been learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import cifnet_pl
from cifnet_pl.heads import RidgeHead
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from tests.command_line import fit, make_photos
from tests.heads.suite import difference, halves, learn, queries, stream
from tests.models import WIDTH, empty, samples, teach

D = 6
TASKS = stream()
QUERIES = queries(TASKS)
NEVER = [TASKS[0], TASKS[2]]
QUERY = samples(["ant", "fox"])[0]
OPTIONS: dict[str, dict[str, Any]] = {
    "ridge": {},
    "fixed": {"ridge": 1.0},
    "discriminant": {"decision": "discriminant"},
    "joined": {"transform": "joined"},
    "products": {"transform": "products"},
}


def forget(head: RidgeHead, classes: list[int]) -> RidgeHead:
    for label in classes:
        share = head.share_of(label)
        assert share is not None
        head.subtract_(share)
    head.remove_classes(classes)
    head.solve()
    return head


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_forgetting_equals_never_having_learned(options: dict[str, Any]) -> None:
    """From a file too, and where the task went on after it."""
    head = learn(RidgeHead(D, remember=True, **options), TASKS, batch=4)
    again = RidgeHead.from_settings(head.settings())
    again.load_state_dict(head.state_dict())
    first = learn(RidgeHead(D, remember=True, **options), TASKS[:1])
    first.begin_task(TASKS[1].classes)
    first.observe(TASKS[1].z[:3], TASKS[1].y[:3])
    halfway = RidgeHead.from_settings(first.settings())
    halfway.load_state_dict(first.state_dict())
    halfway.observe(TASKS[1].z[3:], TASKS[1].y[3:])
    halfway.solve()
    learn(halfway, TASKS[2:])
    never = learn(RidgeHead(D, **options), NEVER)
    for each in (head, again, halfway):
        assert isinstance(each, RidgeHead)
        forget(each, TASKS[1].classes)
        assert each.classes == never.classes
        assert difference(each(QUERIES), never(QUERIES)) <= 1e-8
        left = len(never.classes) * each.sums.products.numel()
        assert each.state_elements() == {**never.state_elements(), "remembered": left}
    assert never.share_of(never.classes[0]) is None


def test_a_merge_and_several_processes_remember_too() -> None:
    first, second = ([half[i] for half in map(halves, TASKS)] for i in (0, 1))
    here, there = (learn(RidgeHead(D, remember=True), tasks) for tasks in (first, second))
    here.merge_(there)
    here.solve()
    never = learn(RidgeHead(D), NEVER)
    assert difference(forget(here, TASKS[1].classes)(QUERIES), never(QUERIES)) <= 1e-8
    heads = [RidgeHead(D, remember=True) for _ in range(2)]
    for task in TASKS:
        tensors: list[list[torch.Tensor]] = []
        for head, part in zip(heads, halves(task), strict=True):
            head.begin_task(task.classes)
            head.observe(part.z, part.y)
            tensors.append([])
            head.reduce_(tensors[-1].append)
        for mine, yours in zip(*tensors, strict=True):
            total = mine + yours
            mine.copy_(total)
            yours.copy_(total)
        for head in heads:
            head.solve()
    assert difference(forget(heads[0], TASKS[1].classes)(QUERIES), never(QUERIES)) <= 1e-8


def test_a_head_that_remembers_merges_with_another_only() -> None:
    with pytest.raises(UsageError, match="different remember"):
        learn(RidgeHead(D, remember=True), TASKS[:1]).merge_(learn(RidgeHead(D), TASKS[1:]))
    with pytest.raises(UsageError, match="balanced"):
        RidgeHead(D, remember=True, balanced=True)


def test_an_aborted_task_is_not_remembered() -> None:
    head = learn(RidgeHead(D, remember=True), TASKS[:2])
    elements = head.state_elements()
    head.begin_task([50])
    head.observe(QUERIES[:3], torch.full((3,), 50))
    head.abort_task()
    assert head.state_elements() == elements
    assert elements["remembered"] == 3 * 7 * 8 // 2


def remembering() -> Classifier:
    model = empty("ridge")
    model.head = RidgeHead(WIDTH, remember=True)
    return model


def test_a_model_forgets_from_a_bundle(tmp_path: Path) -> None:
    model, never = remembering(), empty("ridge")
    teach(model, ["ant", "bee"])
    teach(model, ["cat", "dog"])
    teach(model, ["elk"])
    teach(never, ["ant", "bee"])
    teach(never, ["elk"])
    model.save(tmp_path / "model")
    loaded = cifnet_pl.load(tmp_path / "model", device="cpu")
    assert loaded.state_elements()["remembered"] == 5 * (WIDTH + 1) * (WIDTH + 2) // 2
    result = loaded.forget(["cat", "dog"])
    assert (result.exact, result.recalled) == (True, {"cat", "dog"})
    assert not result.model.removals
    assert difference(result.model.head(QUERY), never.head(QUERY)) <= 1e-8


def test_extending_a_loaded_model_keeps_what_it_remembers(tmp_path: Path) -> None:
    model, never = remembering(), empty("ridge")
    for each, names in ((model, ["ant", "cat"]), (never, ["ant"])):
        teach(each, names)
    model.save(tmp_path / "model")
    more = make_photos(tmp_path / "photos", ["cat"], 10)
    extended = cifnet_pl.load(tmp_path / "model", device="cpu").extend(more, more=True).model
    extended.save(tmp_path / "more")
    result = cifnet_pl.load(tmp_path / "more", device="cpu").forget(["cat"])
    assert (result.exact, result.recalled) == (True, {"cat"})
    assert difference(result.model.head(QUERY), never.head(QUERY)) <= 1e-8


def test_matrices_of_other_classes_are_refused() -> None:
    head = learn(RidgeHead(D, remember=True), TASKS)
    with pytest.raises(CheckpointError, match="class_grams"):
        RidgeHead(D, remember=True).load_state_dict(
            {**head.state_dict(), "sums.class_grams": head.sums.class_grams[:, 1:]}
        )


def test_a_run_remembers(tmp_path: Path) -> None:
    options = ["--model.head", "RidgeHead", "--model.head.remember", "true", "--model.buffer", "null"]
    assert fit(tmp_path, *options, "--model.backbone", "pixels:2", "--data.image_size", "2") == 0
    model = cifnet_pl.load(tmp_path / "default", device="cpu")
    assert model.state_elements()["remembered"] == len(model.class_names) * 13 * 14 // 2
    assert model.forget(model.class_names[:1]).exact
