"""Classes keep their order and their task; labels are any integers."""

from __future__ import annotations

import pytest
import torch

from cifnet_pl.heads import NCMHead
from cifnet_pl.utilities.errors import UsageError


def head_with(*tasks: list[int]) -> NCMHead:
    head = NCMHead(2)
    for classes in tasks:
        head.begin_task(classes)
        head.observe(torch.ones(len(classes), 2), torch.tensor(classes))
        head.solve()
    return head


def test_tasks_keep_their_order():
    head = head_with([7, -3], [2**62])
    assert head.classes == [7, -3, 2**62]
    assert head.tasks == [[7, -3], [2**62]]
    head.remove_classes([7, -3])
    assert head.tasks == [[2**62]]
    assert head.task_of.tolist() == [0]


@pytest.mark.parametrize(
    ("classes", "counts", "sentence"),
    [
        ([], None, "at least one class"),
        ([1, 1], None, "twice"),
        ([7], None, "already learned"),
        ([2**63], None, "64 bits"),
        ([1, 2], [3], "counts"),
        ([1], [0], "counts"),
    ],
)
def test_tasks_that_are_refused(classes: list[int], counts: list[int] | None, sentence: str):
    head = head_with([7])
    with pytest.raises(UsageError, match=sentence):
        head.begin_task(classes, counts)
    assert head.classes == [7]
