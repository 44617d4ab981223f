"""Classes that RidgeHead remembers are forgotten without their samples, as if they had never been learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import cifnet_pl
from cifnet_pl.cli.forget import exactly
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.ridge import Remembered
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from tests.command_line import fit, make_photos
from tests.heads.suite import difference, halves, learn, queries, stream
from tests.models import WIDTH, empty, samples, teach

D = 6
TASKS = stream()
QUERIES = queries(TASKS)
NEVER = [TASKS[0], TASKS[2]]
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
    head = learn(RidgeHead(D, remember=TASKS[1].classes, **options), TASKS, batch=4)
    assert head.share_of(7) is None
    again = RidgeHead.from_settings(head.settings())
    again.load_state_dict(head.state_dict())
    never = learn(RidgeHead(D, **options), NEVER)
    for each in (head, again):
        forget(each, TASKS[1].classes)
        assert each.classes == never.classes
        assert difference(each(QUERIES), never(QUERIES)) <= 1e-8
        assert each.state_elements() == {**never.state_elements(), "remembered": 0}


def test_a_merge_and_several_processes_remember_too() -> None:
    first, second = ([half[i] for half in map(halves, TASKS)] for i in (0, 1))
    here, there = (learn(RidgeHead(D, remember="all"), tasks) for tasks in (first, second))
    here.merge_(there)
    here.solve()
    never = learn(RidgeHead(D), NEVER)
    assert difference(forget(here, TASKS[1].classes)(QUERIES), never(QUERIES)) <= 1e-8
    heads = [RidgeHead(D, remember="all") for _ in range(2)]
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


def test_what_was_merged_without_its_matrix_is_not_remembered_any_more() -> None:
    first, second = ([half[i] for half in map(halves, TASKS)] for i in (0, 1))
    here = learn(RidgeHead(D, remember="all"), first)
    here.sums.merge(learn(RidgeHead(D), second[:1]).sums, torch.tensor([0]))
    assert here.share_of(TASKS[0].classes[0]) is None
    assert here.share_of(TASKS[1].classes[0]) is not None


def test_an_aborted_task_is_not_remembered() -> None:
    head = learn(RidgeHead(D, remember="all"), TASKS[:2])
    elements = head.state_elements()
    head.begin_task([50])
    head.observe(QUERIES[:3], torch.full((3,), 50))
    head.abort_task()
    assert head.state_elements() == elements
    assert elements["remembered"] == 3 * 7 * 8 // 2


def remembering(names: str) -> cifnet_pl.model.classifier.Classifier:
    model = empty("ridge")
    model.head = RidgeHead(WIDTH, remember=names)
    return model


def test_a_model_knows_the_classes_by_name_and_forgets_from_a_bundle(tmp_path: Path) -> None:
    model, never = remembering("cat, dog"), empty("ridge")
    teach(model, ["ant", "bee"])
    teach(model, ["cat", "dog"])
    teach(model, ["elk"])
    teach(never, ["ant", "bee"])
    teach(never, ["elk"])
    model.save(tmp_path / "model")
    loaded = cifnet_pl.load(tmp_path / "model", device="cpu")
    assert loaded.state_elements()["remembered"] == 2 * (WIDTH + 1) * (WIDTH + 2) // 2
    result = loaded.forget(["cat", "dog"])
    assert result.exact
    assert result.recalled == {"cat", "dog"}
    assert not result.model.removals
    assert "which the model remembered" in exactly(result, "cat")[0]
    z = samples(["ant", "fox"])[0]
    assert difference(result.model.head(z), never.head(z)) <= 1e-8
    partly = loaded.forget(["cat", "ant"])
    assert not partly.exact
    assert partly.recalled == {"cat"}


def test_more_samples_of_a_class_that_was_given_by_name_are_remembered_after_a_file() -> None:
    """A head from a file does not know the names: which classes are remembered is in its sums."""
    first, second = ([half[i] for half in map(halves, TASKS)] for i in (0, 1))
    head = RidgeHead(D, remember="cat, dog")
    head.note_names(dict(zip(TASKS[1].classes, ["cat", "dog"], strict=True)))
    learn(head, first)
    again = RidgeHead.from_settings(head.settings())
    again.load_state_dict(head.state_dict())
    again.merge_(learn(again.fresh(), second))
    again.solve()
    assert again.share_of(TASKS[0].classes[0]) is None
    never = learn(RidgeHead(D), NEVER)
    assert difference(forget(again, TASKS[1].classes)(QUERIES), never(QUERIES)) <= 1e-8


def test_a_task_that_goes_on_after_a_file_is_remembered() -> None:
    head = RidgeHead(D, remember="cat, dog")
    head.note_names(dict(zip(TASKS[1].classes, ["cat", "dog"], strict=True)))
    learn(head, TASKS[:1])
    head.begin_task(TASKS[1].classes)
    again = RidgeHead.from_settings(head.settings())
    again.load_state_dict(head.state_dict())
    again.observe(TASKS[1].z, TASKS[1].y)
    again.solve()
    learn(again, TASKS[2:])
    assert difference(forget(again, TASKS[1].classes)(QUERIES), learn(RidgeHead(D), NEVER)(QUERIES)) <= 1e-8


def test_extending_a_loaded_model_keeps_what_it_remembers(tmp_path: Path) -> None:
    model, never = remembering("cat"), empty("ridge")
    for each, names in ((model, ["ant", "cat"]), (never, ["ant"])):
        teach(each, names)
    model.save(tmp_path / "model")
    more = make_photos(tmp_path / "photos", ["cat"], 10)
    extended = cifnet_pl.load(tmp_path / "model", device="cpu").extend(more, more=True).model
    extended.save(tmp_path / "more")
    result = cifnet_pl.load(tmp_path / "more", device="cpu").forget(["cat"])
    assert (result.exact, result.recalled) == (True, {"cat"})
    z = samples(["ant", "fox"])[0]
    assert difference(result.model.head(z), never.head(z)) <= 1e-8


def test_damaged_places_are_refused() -> None:
    head = learn(RidgeHead(D, remember="all"), TASKS)
    state = head.state_dict()
    for key, value in (("sums.place", state["sums.place"] + 1), ("sums.own", state["sums.own"][1:])):
        with pytest.raises(CheckpointError, match="single classes"):
            RidgeHead(D, remember="all").load_state_dict({**state, key: value})


def test_what_remember_means() -> None:
    assert Remembered(None).text == Remembered("").text == Remembered([]).text == ""
    assert 5 in Remembered("all")
    arguments = Remembered("a cat, dog")
    arguments.note_names({3: "dog", 4: "elk"})
    assert 3 in arguments
    assert 4 not in arguments
    assert Remembered(arguments.text).names == {"a cat", "dog"}
    assert 7 in Remembered(Remembered([7, "dog"]).text)
    for wrong in (["a", ""], [1.5]):
        with pytest.raises(UsageError, match="expected all, or classes"):
            Remembered(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="balanced"):
        RidgeHead(D, remember="all", balanced=True)


def test_a_broken_list_is_refused() -> None:
    with pytest.raises(UsageError, match=r"remember is '\[3, 5', which is no JSON list"):
        RidgeHead(D, remember="[3, 5")


def test_a_run_says_what_remembering_takes_and_refuses_unknown_classes(tmp_path: Path) -> None:
    assert RidgeHead(D).about_remembering(["ant"]) is None
    note = RidgeHead(1280, remember="all").about_remembering(["ant", "bee"])
    assert note == "remembering 2 classes takes 13.1 MB: they can be forgotten without their photos"
    with pytest.raises(UsageError, match="unknown class to remember 'ants': did you mean ant"):
        RidgeHead(D, remember="ants").about_remembering(["ant", "bee"])
    options = ["--model.head", "RidgeHead", "--model.head.remember", "3,5", "--model.buffer", "null"]
    assert fit(tmp_path, *options, "--model.backbone", "pixels:2", "--data.image_size", "2") == 0
    model = cifnet_pl.load(tmp_path / "default", device="cpu")
    assert model.head.remember == '["3", "5"]'
    assert model.state_elements()["remembered"] == 2 * 13 * 14 // 2
    assert model.forget("3").exact
