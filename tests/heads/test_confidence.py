"""Left-out scores against refits; temperatures, thresholds and sets by what they promise."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad
from torchmetrics.classification import MulticlassCalibrationError

from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import (
    ACILHead,
    CIFNetHead,
    DSALHead,
    Head,
    NCMHead,
    RidgeHead,
    SLDAHead,
)
from cifnet_pl.heads.probabilities import (
    CalibrationSamples,
    PredictionSets,
    ReferenceScores,
    calibrate,
    check_buffer,
    fit_probabilities,
)
from cifnet_pl.statistics import RidgeFactor, to_probabilities
from cifnet_pl.utilities.errors import UsageError
from tests.heads.literal import nll
from tests.heads.suite import normal, scans, teach
from tests.models import learn_digits

D = 5
TASKS = [[7], [-3, 4], [100, 0, 1]]


class Stream:
    """Three uneven tasks; the buffer shrinks, and has a weight for each class and task."""

    def __init__(self, seed: int):
        draw = torch.Generator().manual_seed(seed)
        self.z: dict[int, Tensor] = {}
        for label in [c for task in TASKS for c in task]:
            count = int(torch.randint(6, 12, (), generator=draw))
            centre = 2 * torch.randn(D, generator=draw, dtype=torch.float64)
            noise = torch.randn(count, D, generator=draw, dtype=torch.float64)
            self.z[label] = centre + noise
        self.weights = torch.randint(1, 5, (3, 6), generator=draw).double()

    def learn(self, head: Head, *left_out: tuple[int, int]) -> Head:
        """Learn all but sample number i of a class for each (class, i) in ``left_out``."""
        labels = list(self.z)
        for k, classes in enumerate(TASKS):
            head.begin_task(classes, [len(self.z[c]) for c in classes])
            for label in classes:
                head.observe(*self.samples(label, len(self.z[label]), left_out))
            for i, label in enumerate(labels[: labels.index(classes[0])]):
                z, y = self.samples(label, 5 - k, left_out)
                head.observe_past(z, y, self.weights[k, i].expand(len(y)))
            head.solve()
        return head

    def samples(self, label, count, left_out):
        rows = [i for i in range(count) if (label, i) not in left_out]
        return self.z[label][rows], torch.full((len(rows),), label)

    def stored(self) -> tuple[Tensor, Tensor]:
        """The three samples of each class that were in the buffer all along."""
        z = torch.cat([rows[:3] for rows in self.z.values()])
        return z, torch.tensor(list(self.z)).repeat_interleave(3)


def literal(stream: Stream, make: Callable[[], Head], groups: Tensor) -> Tensor:
    """Scores of every stored sample by heads that never saw its group."""
    z, y = stream.stored()
    result = torch.zeros(len(y), len(y) // 3, dtype=torch.float64)
    for group in groups.unique():
        rows = (groups == group).nonzero().flatten()
        left_out = [(int(y[n]), int(n) % 3) for n in rows]
        result[rows] = stream.learn(make(), *left_out)(z[rows])
    return result


GROUPED = torch.tensor([0, 0, 1, 0, 0, 2, *[3] * 3, 4, 4, 4, 4, 5, 6, 7, 7, 6])
"""Groups of one to four of the stored samples, within a class and across two."""


def assert_as_refits(found: Tensor, expected: Tensor) -> None:
    assert torch.allclose(found, expected, rtol=1e-8, atol=1e-8)


PRODUCTS = {"product_features": 1.5}
EXACT: dict[str, tuple[Callable[..., Head], float | str]] = {
    "plain, 0.3": (RidgeHead, 0.3),
    "plain, gcv": (RidgeHead, "gcv"),
    "products, gcv": (partial(RidgeHead, **PRODUCTS), "gcv"),
    "ACIL, gcv": (partial(ACILHead, width=20), "gcv"),
    "CIFNet, derivative": (CIFNetHead, 0.01),
    "CIFNet, locked": (partial(CIFNetHead, update_past=False), 0.01),
    "CIFNet, released": (partial(CIFNetHead, weighting="released"), 0.01),
}
"""Heads that refit in closed form, at the ridge that they chose."""


@pytest.mark.parametrize(("make", "ridge"), EXACT.values(), ids=EXACT)
def test_samples_and_groups_left_out_as_refits_give(make, ridge):
    stream = Stream(0)
    head = stream.learn(make(D, ridge=ridge))
    used = ridge if ridge != "gcv" else head.ridge_used.item()
    found = head.leave_one_out(*stream.stored(), GROUPED)
    assert_as_refits(found, literal(stream, lambda: make(D, ridge=used), GROUPED))


class WithFreedom(RidgeHead):
    """The discriminant at degrees of freedom that are given."""

    def __init__(self, freedom: Tensor, ridge: float):
        super().__init__(D, ridge=ridge, decision="discriminant")
        self.freedom = freedom

    def _set_weights(self, factor: RidgeFactor) -> None:
        factor.degrees_of_freedom = self.freedom
        super()._set_weights(factor)


def test_the_discriminant_left_out_as_refits_at_its_degrees_of_freedom() -> None:
    stream = Stream(7)
    head = stream.learn(RidgeHead(D, decision="discriminant"))
    used = head.ridge_used.item()
    freedom = head._factor().degrees_of_freedom
    expected = literal(stream, lambda: WithFreedom(freedom, used), GROUPED)
    found = head.leave_one_out(*stream.stored(), GROUPED)
    assert_as_refits(found.log_softmax(dim=1), expected.log_softmax(dim=1))


@pytest.mark.parametrize("shrinkage", [0.9, "gcv"])
def test_linear_discriminant_analysis(shrinkage: float | str) -> None:
    """At the ridge of the scatter within classes that the shrinkage stood for."""
    stream = Stream(9)
    head = stream.learn(SLDAHead(D, shrinkage=shrinkage))
    alpha = head.shrinkage_used.item()
    ridge = alpha / (1 - alpha) * head.within_scatter().trace().item() / D
    # As SLDAHead has it, without the correction of lengths.
    no_freedom = torch.zeros((), dtype=torch.float64)
    make = partial(WithFreedom, no_freedom, ridge)
    found = (1 - alpha) * head.leave_one_out(*stream.stored(), GROUPED)
    expected = literal(stream, make, GROUPED)
    assert_as_refits(found.log_softmax(dim=1), expected.log_softmax(dim=1))


def test_a_group_without_which_nothing_is_known() -> None:
    """A class whose only samples are one group, and all samples as one."""
    z = torch.randn(6, D, dtype=torch.float64)
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    for decision in ("ridge", "discriminant"):
        head = teach(RidgeHead(D, ridge=0.3, decision=decision), z, y)
        assert head.leave_one_out(z, y, torch.zeros(6, dtype=torch.int64)).isnan().all()
    alone = head.leave_one_out(z, y, torch.tensor([0, 0, 0, 1, 2, 3])).isnan()
    assert alone.tolist() == [[True, True]] * 3 + [[False, False]] * 3


@pytest.mark.parametrize("make", [CIFNetHead, partial(RidgeHead, **PRODUCTS)])
def test_a_file_and_removed_classes_change_no_score_without_a_sample(make):
    stream = Stream(3)
    head = stream.learn(make(D, ridge=0.3))
    z, y = stream.stored()
    before = head.leave_one_out(z, y)
    again = make(D, ridge=0.3)
    again.load_state_dict(head.state_dict())
    assert torch.equal(again.leave_one_out(z, y), before)
    again.remove_classes([-3, 0])
    kept = (y != -3) & (y != 0)
    found = again.leave_one_out(z[kept], y[kept])
    assert torch.allclose(found, before[kept][:, [0, 2, 3, 5]], rtol=1e-9, atol=1e-9)


def test_a_sample_without_which_nothing_is_known() -> None:
    z = torch.randn(1, D)
    y = torch.tensor([4])
    head = teach(RidgeHead(D), z, y)
    assert head.leave_one_out(z, y).isnan().all()
    calibrate(CalibrationSamples(head, z, y))
    assert head.temperature == head.odds_power == 1
    assert head.probabilities(z).tolist() == [[1.0]]
    images = torch.randn(6, D, generator=torch.Generator().manual_seed(0))
    locked = CIFNetHead(D, ridge="gcv", update_past=False)
    for label, rows in ((0, [0]), (1, [1, 2, 3, 4, 5])):
        teach(locked, images[rows], torch.full((len(rows),), label))
    calibrate(CalibrationSamples(locked, images[:3], torch.tensor([0, 1, 1])))
    assert locked.temperature.isfinite()


@pytest.mark.parametrize("make", [RidgeHead, CIFNetHead, ACILHead])
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_images_that_are_nearly_alike_in_float32(make, noise):
    """Generalised cross-validation wants no ridge at all here; float32 sums have none to spare."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(4).repeat(20)
    centres = torch.randn(4, 30, generator=generator)
    z = centres[y] + noise * torch.randn(80, 30, generator=generator)
    options = {"width": 60} if make is ACILHead else {}
    head = teach(make(30, ridge="gcv", dtype="float32", **options), z, y)
    calibrate(CalibrationSamples(head, z, y))
    assert head.temperature > 0
    assert torch.equal(head.predict(z), y)


def test_cifnet_with_gcv_leaves_out_as_ridge_regression_does() -> None:
    """In one task both have the same sums, and a free bias."""
    z, y = draw(5, seed=7)
    cifnet = teach(CIFNetHead(WIDTH, ridge="gcv"), z, y)
    ridge = teach(RidgeHead(WIDTH), z, y)
    assert_as_refits(cifnet.leave_one_out(z, y), ridge.leave_one_out(z, y))


def test_dsal_is_near() -> None:
    stream = Stream(0)
    make = partial(DSALHead, D, width=20, ridge=1.0)
    head = stream.learn(make())
    result = head.leave_one_out(*stream.stored())
    wanted = literal(stream, make, torch.arange(18))
    naive = head(stream.stored()[0])
    # Not exact, but most of what lies between the scores with and without the sample.
    assert (result - wanted).norm() < 0.2 * (naive - wanted).norm()


def fit_temperature(scores: Tensor, y: Tensor) -> tuple[float, float]:
    """Temperature and power."""
    fit = fit_probabilities([scores], y)
    return 1 / fit.rule_weights[0], fit.power


@pytest.mark.parametrize(("temperature", "power"), [(0.4, 0.3), (2.0, 0.7)])
def test_the_power_that_made_the_labels_is_found(temperature, power):
    draw = torch.Generator().manual_seed(1)
    scores = 1.5 * normal(4000, 6)
    p = to_probabilities(scores, torch.tensor(temperature), torch.tensor(power))
    y = torch.multinomial(p, 1, generator=draw).flatten()
    found = fit_temperature(scores, y)
    best = nll(scores, y, *found)
    true = nll(scores, y, temperature, power)
    assert true - 0.004 < best <= true + 1e-6
    for factors in ((0.9, 1), (1.1, 1), (1, 0.9), (1, 1.1), (0.98, 1.02), (1.02, 0.98)):
        other = nll(scores, y, factors[0] * found[0], factors[1] * found[1])
        assert best <= other + 1e-6


def test_the_power_of_two_classes_is_one():
    """There it has the same effect as the temperature."""
    draw = torch.Generator().manual_seed(1)
    scores = normal(400, 2)
    y = torch.multinomial(scores.softmax(dim=1), 1, generator=draw).flatten()
    assert fit_temperature(scores, y)[1] == 1


@pytest.mark.parametrize("samples", [12, 1000])
def test_without_an_error_nothing_is_certain(samples: int) -> None:
    """The chance of an error is not taken for less than about 1 in n."""
    y = torch.arange(samples) % 4
    scores = one_hot(y).double()
    temperature, power = torch.tensor(fit_temperature(scores, y), dtype=torch.float64)
    wrong = 1 - float(to_probabilities(scores[:1], temperature, power)[0, 0])
    assert 0.3 / samples < wrong < 3 / samples


@pytest.mark.parametrize(
    "head",
    [RidgeHead(64), CIFNetHead(64, ridge=1.0), DSALHead(64, width=300)],
    ids=lambda head: head.title,
)
def test_digits_are_calibrated_as_well_as_on_the_test_set(head: Head) -> None:
    order = np.random.default_rng(0).permutation(1797)
    z, y = (part[order] for part in scans())
    buffer = CalibrationBuffer(300)
    learn_digits(head, buffer, z[:900], y[:900])
    test = z[900:]
    labels = y[900:]
    ece = MulticlassCalibrationError(10, n_bins=15)
    raw = ece(head.probabilities(test), labels)
    calibrate(CalibrationSamples(head, *buffer.items()))
    fitted = ece(head.probabilities(test), labels)
    oracle = fit_temperature(head(test), labels)
    assert raw > 0.2
    assert fitted < 0.04
    found = head.temperature.item(), head.odds_power.item()
    assert nll(head(test), labels, *found) < 1.05 * nll(head(test), labels, *oracle)


def test_what_cannot_be_calibrated_is_refused() -> None:
    for head, buffer, words in (
        (RidgeHead(3), None, "calibrate needs buffer samples"),
        (NCMHead(3), CalibrationBuffer(9), "NCMHead has no leave-one-out scores"),
        (RidgeHead(3, decision="auto"), None, "decision: auto needs buffer samples"),
    ):
        with pytest.raises(UsageError, match=words):
            check_buffer(head, buffer, calibrates=True)


CLASSES = 12
WIDTH = 16
FREQUENT = 3


def draw(each: int, seed: int) -> tuple[Tensor, Tensor]:
    """Samples of ``CLASSES`` overlapping classes, of which some are wider than others.

    There are ``each`` of most classes, and ten times as many of the ``FREQUENT`` ones.
    """
    centres = 2 + normal(CLASSES, WIDTH, seed=1)
    counts = torch.full((CLASSES,), each)
    counts[:FREQUENT] *= 10
    y = torch.arange(CLASSES).repeat_interleave(counts)
    noise = normal(len(y), WIDTH, seed=seed)
    return centres[y] + (0.4 + 0.08 * y.double())[:, None] * noise, y


def test_p_values_and_thresholds_by_counting() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 9, (30,), generator=generator).double()  # with ties
    weights = torch.rand(30, generator=generator, dtype=torch.float64) + 0.5
    # One of which nothing is known.
    reference = ReferenceScores(
        pad(scores, (0, 1), value=torch.nan), pad(weights, (0, 1))
    )
    total = weights.sum() + weights.mean()  # with the new image
    for value in (-1.0, 0.0, 3.0, 3.5, 8.0, 9.0):
        expected = (weights[scores >= value].sum() + weights.mean()) / total
        found = reference.p_values(torch.tensor([value], dtype=torch.float64))
        assert float(found) == pytest.approx(float(expected))
    for share in (0.1, 0.5, 0.9):
        limit = reference.threshold(share)
        assert weights[scores <= limit].sum() >= share * total
        assert weights[scores < limit].sum() < share * total
    assert reference.threshold(0.99) == math.inf  # 30 samples cannot promise that


def test_promises_about_new_images_hold_where_few_samples_are_stored() -> None:
    """Of unknown images, and of sets that hold the right class."""
    share = 0.05
    z, y = draw(30, seed=2)
    head = teach(RidgeHead(WIDTH), z, y)
    head.temperature.fill_(0.3)
    rows = torch.cat([(y == c).nonzero().flatten()[:25] for c in range(CLASSES)])
    samples = CalibrationSamples(head, z[rows], y[rows])
    new, right = draw(600, seed=3)
    reference = ReferenceScores(samples.novelty(), samples.sample_weights())
    called = reference.p_values(head.novelty(new)) <= share
    sets = PredictionSets.of(samples, 1 - share)
    chosen = sets.of_probabilities(head.probabilities(new))
    missed = ~chosen.gather(1, right[:, None])
    assert chosen.any(dim=1).all()
    for wrong in (called, missed):
        assert abs(wrong.double().mean().item() - share) < 0.03
