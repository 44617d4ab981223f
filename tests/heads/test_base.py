"""What all heads have in common: capabilities, and what they take and refuse."""

from functools import partial

import numpy as np
import pytest
import torch

from cifnet_pl.heads import HEADS, ACILHead, CIFNetHead, RidgeHead
from cifnet_pl.heads.trial import WIDTH
from cifnet_pl.testing import Case, assert_same_state, snapshot
from cifnet_pl.utilities.errors import CifnetError, UnsupportedError, UsageError


def test_which_heads_use_a_buffer_and_leave_nothing_of_a_removed_class() -> None:
    """The other capabilities are in the table of docs/how_to/extend.md."""
    buffered = {name for name, kind in HEADS.items() if kind.uses_buffer}
    assert buffered == {"CIFNetHead", "LogisticHead", "SGDHead"}
    clean = {name for name, kind in HEADS.items() if not kind.counterexamples}
    assert clean == {"NCMHead", "FeCAMHead", "KNNHead"}


def test_an_argument_takes_a_capability_away_from_that_head_only() -> None:
    locked = CIFNetHead(WIDTH, update_past=False)
    assert CIFNetHead(WIDTH).tells_novelty
    with pytest.raises(UnsupportedError, match="CIFNetHead cannot"):
        locked.require("tells_novelty")


def test_impossible_tasks_and_labels_are_refused_and_change_nothing() -> None:
    head = Case(RidgeHead).learned()
    before = snapshot(head)
    first, *others = head.classes
    same = dict.fromkeys(head.classes, first)
    missing = {label: label for label in others}
    for change, labels, words in (
        (head.begin_task, [], "at least one class"),
        (head.begin_task, [3, 4, 3], "class 3 is given twice"),
        (head.begin_task, [3, -3], "class -3"),
        (head.relabel, same, "one new label for each"),
        (head.relabel, missing, "one new label for each"),
    ):
        with pytest.raises(UsageError, match=words):
            change(labels)
        assert_same_state(head, before)


@pytest.mark.parametrize("make", [CIFNetHead, RidgeHead, partial(ACILHead, width=9)])
def test_a_ridge_that_is_not_positive_is_refused(make) -> None:
    for ridge in (0, -1.0, float("nan"), float("inf"), "auto"):
        with pytest.raises(UsageError, match="ridge"):
            make(WIDTH, ridge=ridge)


def reversed_in_32_bits(array: np.ndarray) -> np.ndarray:
    """The same numbers, with a negative stride."""
    return array[::-1].astype(f"{array.dtype.kind}4")[::-1]


@pytest.mark.parametrize("given", [np.ndarray.tolist, reversed_in_32_bits])
def test_arrays_and_lists_are_taken_as_tensors_are(given) -> None:
    draw = np.random.default_rng(0)
    arrays = [
        draw.standard_normal((40, 3)).astype(np.float32).astype(np.float64),
        np.arange(40) % 4 - 1,
        np.full(40, 2.0),
        np.arange(40) // 2,
    ]
    results = []
    for convert in (torch.from_numpy, given):
        z, y, weight, groups = map(convert, arrays)
        head = RidgeHead(3)
        head.begin_task(convert(np.array([-1, 0, 1, 2])))
        head.observe(z, y, weight)
        head.solve()
        scores = [head(z), head.probabilities(z), head.predict(z), head.novelty(z)]
        left_out = head.leave_one_out(z, y, groups)
        novelty = head.leave_one_out_novelty(z, y, groups)
        results.append([*scores, left_out, novelty])
    torch.testing.assert_close(*results)


def test_what_is_no_array_of_numbers_gets_one_sentence() -> None:
    head = RidgeHead(2)
    with pytest.raises(UsageError, match="no array of numbers"):
        head.begin_task(["ant", "bee"])
    head.begin_task([0, 1])
    z = np.zeros((2, 2))
    for given, labels, words in (
        (z, ["ant", "bee"], "no array of numbers"),
        (z, [0.0, 1.0], "expected integers"),
        ([[1.0], [2.0, 3.0]], [0, 1], "no array of numbers"),
        (z.astype(">f4"), [0, 1], "no array of numbers"),
        (z, [0], r"labels have shape \(1,\)"),
        (z.astype(int), [0, 1], "expected floating point"),
    ):
        with pytest.raises(CifnetError, match=words):
            head.observe(given, labels)
