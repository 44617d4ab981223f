"""What all heads have in common: capabilities, and the sizes of stored tensors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from cifnet_pl.heads import HEADS, ACILHead, CIFNetHead, Head, KNNHead, RidgeHead
from cifnet_pl.heads.trial import WIDTH
from cifnet_pl.testing import QUERIES, TASKS, Case, assert_same_state, snapshot
from cifnet_pl.utilities.errors import CifnetError, UnsupportedError, UsageError

EXACT = "merges subtracts reduces"
ABILITIES = {
    "CIFNetHead": "reduces leaves_one_out tells_novelty uses_buffer counterexamples",
    "RidgeHead": f"{EXACT} leaves_one_out tells_novelty counterexamples",
    "ACILHead": f"{EXACT} leaves_one_out tells_novelty counterexamples",
    "DSALHead": "reduces leaves_one_out tells_novelty counterexamples",
    "SLDAHead": f"{EXACT} leaves_one_out tells_novelty counterexamples",
    "NCMHead": EXACT,
    "FeCAMHead": f"{EXACT} tells_novelty",
    "KLDAHead": f"{EXACT} leaves_one_out tells_novelty counterexamples",
    "RanPACHead": f"{EXACT} leaves_one_out tells_novelty counterexamples",
    "KNNHead": "merges",
    "LogisticHead": "uses_buffer counterexamples",
    "SGDHead": "uses_buffer counterexamples",
}
ALL = [
    "merges",
    "subtracts",
    "reduces",
    "leaves_one_out",
    "tells_novelty",
    "uses_buffer",
    "counterexamples",
]


def declared(head: Head | type[Head]) -> str:
    return " ".join(name for name in ALL if getattr(head, name))


def test_capabilities_are_those_of_the_table() -> None:
    assert {name: declared(kind) for name, kind in HEADS.items()} == ABILITIES


def test_an_argument_takes_capabilities_away_from_that_head_only() -> None:
    locked = CIFNetHead(WIDTH, update_past=False)
    assert declared(locked).split() == [
        each for each in ABILITIES["CIFNetHead"].split() if each != "tells_novelty"
    ]
    assert declared(CIFNetHead(WIDTH)) == ABILITIES["CIFNetHead"]
    with pytest.raises(UnsupportedError, match="CIFNetHead cannot"):
        locked.require("tells_novelty")


@pytest.mark.parametrize("kind", [CIFNetHead, RidgeHead, KNNHead])
def test_an_impossible_task_is_refused_and_changes_nothing(kind: type[Head]) -> None:
    head = Case(kind).learned()
    before = snapshot(head)
    for classes, counts, words in (
        ([], [], "at least one class"),
        ([3, 4, 3], [1, 1, 1], "twice"),
        ([3, -3], [1, 1], "class -3 is already learned"),
        ([3, 4], [1], "counts"),
        ([3, 4], [1, 0], "counts"),
    ):
        with pytest.raises(UsageError, match=words):
            head.begin_task(classes, counts)
        assert_same_state(head, before)


@pytest.mark.parametrize("make", [CIFNetHead, RidgeHead, partial(ACILHead, width=9)])
def test_a_ridge_that_is_not_positive_is_refused(make: Callable[..., Head]) -> None:
    for ridge in (0, -1.0, float("nan"), float("inf"), "auto"):
        with pytest.raises(UsageError, match="ridge"):
            make(WIDTH, ridge=ridge)


def test_probabilities_are_the_softmax_of_scores_over_temperature() -> None:
    head = Case(RidgeHead).learned(TASKS)
    plain = torch.softmax(head(QUERIES), dim=1)
    assert torch.allclose(head.probabilities(QUERIES), plain, rtol=0, atol=1e-14)
    head.temperature.fill_(2.5)
    tempered = torch.softmax(head(QUERIES) / 2.5, dim=1)
    assert torch.allclose(head.probabilities(QUERIES), tempered)


# ---------------------------------------------------------------------- arrays


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "given",
    [
        np.asarray,
        np.ndarray.tolist,
        read_only,
        lambda array: array[::-1].copy()[::-1],
        lambda array: array.astype(f"{array.dtype.kind}4"),
    ],
    ids=["array", "list", "read-only", "reversed", "32 bits"],
)
def test_arrays_and_lists_are_taken_as_tensors_are(
    given: Callable[[np.ndarray], Any],
) -> None:
    generator = np.random.default_rng(0)
    z = generator.standard_normal((40, 3)).astype(np.float32).astype(np.float64)
    y = np.arange(40) % 4 - 1
    weight = np.full(40, 2.0)
    groups = np.arange(40) // 2
    results = []
    for convert in (torch.from_numpy, given):
        head = RidgeHead(3)
        head.begin_task(convert(np.array([-1, 0, 1, 2])))
        head.observe(convert(z), convert(y), convert(weight))
        head.solve()
        results.append(
            [
                head(convert(z)),
                head.probabilities(convert(z)),
                head.predict(convert(z)),
                head.novelty(convert(z)),
                head.leave_one_out(convert(z), convert(y), convert(groups)),
                head.leave_one_out_novelty(convert(z), convert(y), convert(groups)),
            ]
        )
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_what_is_no_array_of_numbers_gets_one_sentence() -> None:
    head = RidgeHead(2)
    with pytest.raises(UsageError, match="a head knows no class names"):
        head.begin_task(["ant", "bee"])
    head.begin_task([0, 1])
    z = np.zeros((2, 2))
    with pytest.raises(UsageError, match="a head knows no class names"):
        head.observe(z, ["ant", "bee"])
    with pytest.raises(UsageError, match="expected integers"):
        head.observe(z, [0.0, 1.0])
    with pytest.raises(UsageError, match="no array of numbers"):
        head.observe([[1.0], [2.0, 3.0]], [0, 1])
    with pytest.raises(UsageError, match="no array of numbers"):
        head.observe(z.astype(">f4"), [0, 1])
    with pytest.raises(UsageError, match=r"labels have shape \(1,\)"):
        head.observe(z, [0])
    with pytest.raises(CifnetError, match="expected floating point"):
        head.observe(z.astype(int), [0, 1])
