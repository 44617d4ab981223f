"""Verdicts on unknown samples, prediction sets, AUROC and FPR95."""

import numpy as np
import pytest
import torch

from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.unknowns import detection
from cifnet_pl.utilities.errors import UnsupportedError, UsageError
from tests.models import empty, learn_task, learned, samples

NAMES = ["ant", "bee", "cat"]


def calibrated(head: str = "ridge", count: int = 30) -> Classifier:
    """A model of three classes with calibration samples."""
    model = empty(head)
    model.buffer = CalibrationBuffer(60)
    model.calibrated = True
    return learn_task(model, NAMES, count)


def verdicts(model: Classifier, names: list[str]) -> list:
    z, _, _ = samples(names, 30)
    predictor = model.open_set_predictor(unknown=0.1, coverage=0.9)
    return predictor.decisions(z, model.head.probabilities(z))


def test_known_and_unknown_samples() -> None:
    model = calibrated()
    known = verdicts(model, NAMES)
    unknown_ones = verdicts(model, ["yak", "zebu"])
    assert sum(bool(v.known) for v in known) >= 0.85 * len(known)
    assert not any(v.known for v in unknown_ones)
    assert all(v.known == (v.p_value > 0.1) for v in [*known, *unknown_ones])
    largest = max(v.p_value for v in unknown_ones)
    assert largest < min(v.p_value for v in known if v.known)
    right = np.repeat(NAMES, 30)
    covered = [name in v.prediction_set for name, v in zip(right, known, strict=True)]
    assert np.mean(covered) >= 0.85
    novelty = model.head.novelty(samples(NAMES, 30)[0])
    assert [v.novelty for v in known] == novelty.tolist()


def test_prediction_sets_are_sorted() -> None:
    model = calibrated()
    z, _, _ = samples(["yak"], 5)
    probabilities = model.head.probabilities(z)
    decided = model.open_set_predictor(coverage=0.999).decisions(z, probabilities)
    for verdict, shares in zip(decided, probabilities, strict=True):
        names = verdict.prediction_set or ()
        members = [shares[NAMES.index(name)].item() for name in names]
        assert members == sorted(members, reverse=True)
        assert len(members) == 3  # with 60 samples that coverage needs all classes
        assert (verdict.known, verdict.novelty, verdict.p_value) == (None, None, None)


def test_verdicts_follow_every_change() -> None:
    model = calibrated()
    model.open_set_predictor(0.1, 0.9)
    learn_task(model, ["yak"], 30)
    assert sum(bool(v.known) for v in verdicts(model, ["yak"])) >= 25
    model.remove_classes(["yak"])
    assert not any(v.known for v in verdicts(model, ["yak"]))
    model.rename("ant", "wasp")
    assert any("wasp" in (v.prediction_set or ()) for v in verdicts(model, ["ant"]))
    before = model.open_set_predictor(0.1, 0.9)
    learn_task(model, ["bee"], 30, seed=1)
    assert model.open_set_predictor(0.1, 0.9) is not before


def test_requirements() -> None:
    for model in (empty("ridge"), learned("ridge")):
        with pytest.raises(UsageError, match=r"no calibration samples.*--model.buffer"):
            model.open_set_predictor(0.05)
    with pytest.raises(UsageError, match="unknown is 5, expected a share between"):
        calibrated().classify([], unknown=5)
    with pytest.raises(UsageError, match="coverage is 1, expected a share"):
        calibrated().classify([], coverage=1)
    with pytest.raises(UnsupportedError, match="NCMHead cannot score novelty"):
        calibrated("ncm").classify([], unknown=0.05)
    with pytest.raises(UnsupportedError, match="NCMHead cannot leave samples out"):
        calibrated("ncm").classify([], coverage=0.95)


def by_counting(known: torch.Tensor, unknown_ones: torch.Tensor) -> tuple[float, float]:
    larger = (unknown_ones[:, None] > known).double().mean()
    ties = (unknown_ones[:, None] == known).double().mean()
    taken = []
    for t in torch.cat([known, unknown_ones]):
        if (known <= t).double().mean() >= 0.95:
            taken.append(float((unknown_ones <= t).double().mean()))
    return 100 * float(larger + 0.5 * ties), 100 * min(taken)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_by_counting(scale: float) -> None:
    draw = torch.Generator().manual_seed(0)
    known = torch.randint(0, 40, (57,), generator=draw).double() * scale  # with ties
    unknown_ones = (torch.randint(0, 40, (43,), generator=draw) + 9).double() * scale
    assert detection(known, unknown_ones) == pytest.approx(
        by_counting(known, unknown_ones), abs=1e-4
    )
