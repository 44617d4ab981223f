"""Verdicts on unknown samples, prediction sets, AUROC and FPR95."""

import numpy as np
import pytest
import torch

from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.metrics import detection
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


def test_detection() -> None:
    """Of twelve pairs the unknown sample is more novel in ten, and as novel in one; to keep all
    that are known, one of three unknown ones is taken for known.
    """
    known = torch.tensor([0.0, 1.0, 2.0, 3.0])
    unknown_ones = torch.tensor([2.0, 4.0, 5.0])
    found = detection(known, unknown_ones)
    assert found == pytest.approx((100 * 10.5 / 12, 100 / 3))
