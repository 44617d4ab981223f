"""Thresholds and sets of answers: against their definitions, and whether they keep what they promise."""

from __future__ import annotations

import math

import pytest
import torch

from cifnet_pl.heads import Head, RidgeHead
from cifnet_pl.heads.confidence import (
    FREE,
    PENALTY,
    AnswerSets,
    Reference,
    check_share,
    novelty_reference,
    photo_weights,
    set_scores,
)
from cifnet_pl.utilities.errors import UsageError

CLASSES, WIDTH = 12, 16


def draw(count: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``count`` samples of each of ``CLASSES`` overlapping classes, some of them wider than others."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 2
    y = torch.repeat_interleave(torch.arange(CLASSES), torch.tensor(count))
    noise = torch.randn(len(y), WIDTH, generator=generator, dtype=torch.float64)
    return centres[y] + (0.4 + 0.08 * y.double())[:, None] * noise, y


def learned(z: torch.Tensor, y: torch.Tensor) -> Head:
    head = RidgeHead(WIDTH)
    head.begin_task(range(CLASSES))
    head.observe(z, y)
    head.solve()
    head.temperature.fill_(0.3)
    return head


def stored(y: torch.Tensor, quota: int) -> torch.Tensor:
    """Positions of up to ``quota`` samples of each class, as a buffer keeps them."""
    return torch.cat([(y == c).nonzero().flatten()[:quota] for c in range(CLASSES)])


def test_p_values_and_thresholds_by_counting() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 9, (30,), generator=generator).double()  # with ties
    weights = torch.rand(30, generator=generator, dtype=torch.float64) + 0.5
    reference = Reference.of(torch.cat([scores, torch.tensor([torch.nan])]), torch.cat([weights, weights[:1]]))
    new_weight = weights.mean()
    for value in (-1.0, 0.0, 3.0, 3.5, 8.0, 9.0):
        expected = (weights[scores >= value].sum() + new_weight) / (weights.sum() + new_weight)
        assert float(reference.p_values(torch.tensor([value], dtype=torch.float64))) == pytest.approx(float(expected))
    for share in (0.1, 0.5, 0.9):
        limit = reference.threshold(share)
        assert weights[scores <= limit].sum() >= share * (weights.sum() + new_weight)
        assert weights[scores < limit].sum() < share * (weights.sum() + new_weight)
    assert reference.threshold(0.99) == math.inf  # 30 samples cannot promise that
    assert Reference.of(scores[:19], torch.ones(19)).threshold(0.95) == scores[:19].max()


def test_weights_make_a_stored_sample_stand_for_its_class() -> None:
    y = torch.tensor([5, 5, -2, 5, 9])
    result = photo_weights(y, torch.tensor([-2, 9, 5]), torch.tensor([7, 1, 30]))
    assert result.tolist() == [10, 10, 7, 10, 1]


def test_scores_of_sets_by_adding_up() -> None:
    p = torch.softmax(2 * torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1)
    result = set_scores(p)
    for row in range(20):
        for c in range(6):
            above = p[row] > p[row, c]
            expected = p[row][above].sum() + PENALTY * max(0, int(above.sum()) - FREE + 1)
            assert float(result[row, c]) == pytest.approx(float(expected))


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1])
def test_the_promise_about_unknown_holds(share: float) -> None:
    """Few samples are stored of each class, and the classes differ in frequency by a factor of ten."""
    count = [300] * 3 + [30] * (CLASSES - 3)
    z, y = draw(count, seed=2)
    head, rows = learned(z, y), stored(y, 25)
    reference = novelty_reference(head, z[rows], y[rows])
    new, _ = draw([20 * n for n in count], seed=3)
    called = (reference.p_values(head.novelty(new)) <= share).double().mean().item()
    assert abs(called - share) < 3 * math.sqrt(share / len(rows)) + 1 / len(rows)


def test_without_weights_the_promise_would_break() -> None:
    count = [300] * 3 + [30] * (CLASSES - 3)  # the rare classes are the wide ones
    z, y = draw(count, seed=2)
    head, rows = learned(z, y), stored(y, 25)
    new, _ = draw([20 * n for n in count], seed=3)
    plain = Reference.of(head.leave_one_out_novelty(z[rows], y[rows]), torch.ones(len(rows), dtype=torch.float64))
    weighted = novelty_reference(head, z[rows], y[rows])
    errors = [abs((r.p_values(head.novelty(new)) <= 0.1).double().mean().item() - 0.1) for r in (plain, weighted)]
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_sets_hold_the_right_class_as_often_as_promised(coverage: float) -> None:
    z, y = draw([40] * CLASSES, seed=4)
    head, rows = learned(z, y), stored(y, 40)
    new, right = draw([500] * CLASSES, seed=5)
    probabilities = head.probabilities(new)
    for per_class in (False, True):
        sets = AnswerSets.of(head, z[rows], y[rows], coverage, per_class).of_probabilities(probabilities)
        hit = sets.gather(1, right[:, None]).flatten().double()
        assert sets.any(dim=1).all()
        if per_class:
            worst = min(hit[right == c].mean().item() for c in range(CLASSES))
            assert worst > coverage - 0.12  # 40 samples a class
            assert hit.mean() > coverage - 0.02
        else:
            assert abs(hit.mean().item() - coverage) < 0.03 or sets.sum(dim=1).double().mean() < 1.05


def test_too_few_samples_of_a_class_to_promise_anything_of_it() -> None:
    z, y = draw([40] * CLASSES, seed=4)
    head, rows = learned(z, y), stored(y, 10)
    sets = AnswerSets.of(head, z[rows], y[rows], 0.95, per_class=True)
    assert (sets.limits == math.inf).all()
    assert sets.of_probabilities(head.probabilities(z)).all()


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 5.0, math.nan])
def test_a_share_outside_0_and_1(share: float) -> None:
    with pytest.raises(UsageError, match="expected a share between 0 and 1"):
        check_share("coverage", share)
