"""Calibration by groups or labelled images; verdicts on unknown samples, and prediction sets."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import betabinom
from torch import Tensor

import cifnet_pl
from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import CalibrationBuffer, buffer_samples, given_groups
from cifnet_pl.heads import NCMHead, RidgeHead
from cifnet_pl.heads.probabilities import (
    SMALLEST_POWER,
    CalibrationSamples,
    PredictionSets,
    ReferenceScores,
    fit_probabilities,
)
from cifnet_pl.model.assembly import assemble
from cifnet_pl.model.bundle import read_bundle
from cifnet_pl.model.calibration import Calibration, Estimate, forecast, widened
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.merge import merge
from cifnet_pl.model.metrics import Interval
from cifnet_pl.utilities.errors import UnsupportedError, UsageError
from tests import models
from tests.models import learn_embeddings, tensors_equal

SIDE = 4
WIDTH = 3 * SIDE**2
CLASSES = 5
GROUPS = 8
EACH = 4
NAMES = [f"class {c}" for c in range(CLASSES)]
ANIMALS = ["ant", "bee", "cat"]
SELECTS_RULE = partial(RidgeHead, decision="auto")


def images(seed, spread=0.7, groups_each=GROUPS):
    """Embeddings of five classes, in groups of four that share a component, and labels."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.arange(CLASSES * groups_each * EACH)
    y = rows // (groups_each * EACH)
    scenes = torch.randn(CLASSES * groups_each, WIDTH, generator=draw)
    classes = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(len(y), WIDTH, generator=draw)
    return classes[y] + 1.2 * scenes[rows // EACH] + spread * noise, y


def empty(buffer, head=RidgeHead):
    """A model that knows nothing, and is calibrated if it has a buffer."""
    backbone = build_backbone(f"pixels:{SIDE}")
    calibrated = buffer is not None
    return Classifier(backbone, head(WIDTH), buffer, calibrated=calibrated)


def learned(spread=0.7, groups_each=GROUPS, head=RidgeHead):
    """A model that learned images with content hashes 0, 1, …, group after group."""
    buffer = None if head is NCMHead else CalibrationBuffer()
    return learn_embeddings(empty(buffer, head), NAMES, *images(1, spread, groups_each))


def learn_rows(model, z, y, rows, classes):
    """Learn the images at some rows as a task of some classes."""
    model.begin_task([NAMES[c] for c in classes])
    labels = torch.tensor(model.labels([NAMES[c] for c in y[rows].tolist()]))
    model.observe(z[rows], labels, rows.nonzero().flatten())
    model.finish_task()


def learned_in_parts(new_buffer, z, y):
    """A model that learned in two tasks, and one of two sites that were merged."""
    in_two = empty(new_buffer())
    for classes in ([4, 1, 3], [2, 0]):
        learn_rows(in_two, z, y, torch.isin(y, torch.tensor(classes)), classes)
    sites = [empty(new_buffer()) for _ in range(2)]
    for half, site in enumerate(sites):
        rows = (torch.arange(len(y)) // EACH) % 2 == half
        learn_rows(site, z, y, rows, list(range(CLASSES)))
    return [in_two, merge(sites).model]


def stored(model, tmp_path):
    """The model as it comes back from a file, with the same tensors."""
    model.save(tmp_path / "bundle")
    again = cifnet_pl.load(tmp_path / "bundle", device="cpu")
    assert tensors_equal(again.tensors(), model.tensors())
    return again


def assert_calibrated_by(model, scores, y, smallest_power=1.0):
    """By scores without groups; of images alone the power is fitted, too."""
    fit = fit_probabilities([scores], y, smallest_power)
    found = float(model.head.temperature), float(model.head.odds_power)
    assert found == pytest.approx((1 / fit.rule_weights[0], fit.power), rel=1e-9)


def percent(right: Tensor) -> float:
    return 100 * right.double().mean().item()


def test_images_that_are_tested_stand_for_those_that_are_not():
    """Of images without similar ones, as many are tested as the limit allows."""
    z, y = images(1)
    model = learned()
    samples = buffer_samples(z, y, torch.arange(len(y)))
    every = torch.ones_like(y, dtype=torch.bool)
    found = []
    for limit in (len(y), 5):
        calibration = Calibration()
        calibration.find_groups(model.head, samples.at(every), every, every, limit)
        found.append(calibration.group_errors)
    assert found[0][2] == len(y)
    torch.testing.assert_close(found[1][2], found[0][2])


def accuracy_of(model: Classifier, z: Tensor, y: Tensor) -> float:
    return percent(model.head.predict(z) == y)


def test_groups_are_left_out_together() -> None:
    model = learned()
    z, y = model.buffer.items()
    true_groups = model.buffer.key // EACH
    groups = model.buffer.group
    together = groups[:, None] == groups
    same_group = true_groups[:, None] == true_groups
    estimate = model.calibration
    assert estimate.estimate_kind == "found"
    assert together[same_group].double().mean() > 0.99
    assert_calibrated_by(model, model.head.leave_one_out(z, y, groups), y)
    loo, new_groups = estimate.estimates
    low, high = new_groups.interval
    assert low < new_groups.accuracy < high
    new, labels = images(2, groups_each=40)
    assert low < accuracy_of(model, new, labels) < high
    alone = model.head.leave_one_out(z, y)
    assert loo.accuracy == pytest.approx(percent(alone.argmax(1) == y))
    assert loo.accuracy > new_groups.accuracy + 3
    predictor = model.open_set_predictor(0.05, 0.9)
    members = predictor.sets.of_probabilities(model.head.probabilities(new))
    assert percent(members.gather(1, labels[:, None])) > 85
    p_values = predictor.reference.p_values(model.head.novelty(new))
    assert percent(p_values <= 0.05) < 10


def test_independent_images_have_one_accuracy_and_few_or_one_class_none() -> None:
    independent = learned(spread=8.0).calibration
    assert independent.estimate_kind == "independent"
    loo, new_groups = independent.estimates
    assert loo.accuracy == new_groups.accuracy
    few = learned(groups_each=19 // EACH).calibration
    loo, new_groups = few.estimates
    assert (few.estimate_kind, new_groups) == ("few", None)
    assert loo is not None
    single = learned()
    single.remove_classes(NAMES[1:])  # every prediction is right
    assert single.calibration.estimates == [None, None]
    assert single.accuracy_sentences() == []


def true_groups_are_whole(model: Classifier) -> bool:
    """Whether of each day that is in the buffer all images are there."""
    sizes = torch.unique(model.buffer.key // EACH, return_counts=True)[1]
    return bool((sizes == EACH).all())


def test_a_small_buffer_holds_whole_groups_and_promises_what_is_true() -> None:
    """In one task, in two, and of two sites that are merged; also after a class is gone."""
    capacity = 48
    z, y = images(1, spread=0.4)
    new, labels = images(2, 0.4, groups_each=40)
    once = learn_embeddings(empty(CalibrationBuffer(capacity)), NAMES, z, y)
    fewer = once.clone()
    fewer.remove_classes(NAMES[:1])
    assert torch.equal(fewer.buffer.group, once.buffer.group[once.buffer.y > 0])
    in_two, merged = learned_in_parts(lambda: CalibrationBuffer(capacity), z, y)
    for model in (once, merged, fewer):
        estimate = model.calibration
        known = torch.tensor([NAMES[c] in model.class_names for c in labels.tolist()])
        names = [NAMES[c] for c in labels[known].tolist()]
        true = accuracy_of(model, new[known], torch.tensor(model.labels(names)))
        assert 0 < len(model.buffer.y) <= capacity
        assert true_groups_are_whole(model)
        assert estimate.estimate_kind == "found"
        loo, new_groups = estimate.estimates
        low, high = new_groups.interval
        assert low <= true <= high
        assert new_groups.accuracy < loo.accuracy - 5
    # Groups showed in the second task, so that those of the first task's classes are not known.
    assert true_groups_are_whole(in_two)
    loo, new_groups = in_two.calibration.estimates
    assert loo.accuracy > 97
    assert new_groups is None
    assert "buffer.init_args.capacity" in in_two.accuracy_sentences()[-1]


@pytest.mark.parametrize("classes_at_hand", [0, 1])
def test_classes_that_were_never_at_hand_promise_nothing_and_name_the_option(
    classes_at_hand,
) -> None:
    """All images of a class must be at hand once, to tell whether they come in groups; one class
    alone, in which none is predicted wrongly, does not tell."""
    small = CalibrationBuffer(capacity=EACH * GROUPS - 1 + classes_at_hand)
    model = learn_embeddings(empty(small), NAMES, *images(1))
    assert "on new groups" in model.coverage_notes()[0]
    assert model.calibration.estimate_kind == "incomplete"
    assert model.calibration.estimates[1] is None
    assert "buffer.init_args.capacity" in model.accuracy_sentences()[-1]


def test_where_groups_show_late_only_those_that_are_whole_calibrate() -> None:
    """Independent images are drawn one by one; what is left of them is part of unknown groups."""
    model = empty(CalibrationBuffer(60))
    z, y = images(3, groups_each=40)
    rows = (y < 2) & (torch.arange(len(y)) % EACH == 0)
    learn_rows(model, z, y, rows, [0, 1])
    assert model.calibration.estimate_kind == "independent"
    z, y = images(1, spread=0.4)
    for label in range(CLASSES):  # so alike that images are predicted wrongly
        z[y == label] -= 0.5 * z[y == label].mean(dim=0)
    learn_rows(model, z, y, y >= 2, [2, 3, 4])
    assert model.calibration.estimate_kind == "found"
    assert true_groups_are_whole(model)
    assert model.buffer.y.unique().tolist() == [2, 3, 4]
    assert "no group of 2 classes" in model.accuracy_sentences()[-1]


def test_what_few_images_showed_says_nothing_of_many_that_were_never_at_hand(watch):
    """Where no sample can be tested, nothing is left out either: that may factorise the sums."""
    left_out = watch(RidgeHead, "rules_left_out", lambda head, z, y: len(z))
    z, y = images(3, groups_each=40)
    model = empty(CalibrationBuffer(60))
    few = (
        (y < 2)
        & (torch.arange(len(y)) % 160 < 120)
        & (torch.arange(len(y)) % EACH == 0)
    )
    learn_rows(model, z, y, few, [0, 1])
    assert model.calibration.estimate_kind == "independent"
    learn_rows(model, z, y, y >= 2, [2, 3, 4])
    assert model.calibration.estimate_kind == "incomplete"
    assert left_out
    assert 0 not in left_out


def test_models_of_before_keep_their_groups(tmp_path):
    """They say nothing of the errors that showed them."""
    model = learned()
    model.save(tmp_path / "bundle")
    old = read_bundle(tmp_path / "bundle")
    for name in ("calibration.group_errors", "calibration.is_given"):
        del old.tensors[name]
    old.tensors["calibration.groups"] = old.tensors.pop("buffer.group")
    for name in ("given", "given_key"):
        old.tensors[f"calibration.{name}"] = torch.zeros(0, dtype=torch.int64)
    again = assemble(old)
    assert again.calibration.leaves_groups_out
    assert torch.equal(again.buffer.group, model.buffer.group)


def test_a_class_of_few_images_counts_as_much_as_another() -> None:
    z, y = images(1)
    rows = (y > 0) | (torch.arange(len(y)) < 8)
    model = learn_embeddings(empty(CalibrationBuffer()), NAMES, z[rows], y[rows])
    samples, labels = model.buffer.items()
    scores = model.head.leave_one_out(samples, labels, model.buffer.group)
    right = scores.argmax(1) == labels
    by_class = [percent(right[labels == c]) for c in range(CLASSES)]
    accuracy = model.calibration.estimates[1].accuracy
    assert accuracy == pytest.approx(sum(by_class) / CLASSES, abs=2)
    assert accuracy < percent(right) - 1


def test_copies_of_an_image_are_left_out_with_it() -> None:
    """An image that is learned twice is in the sums twice, and would answer for itself."""
    z, y = images(3, spread=2.5, groups_each=40)
    one_of_group = slice(0, None, EACH)
    z, y = z[one_of_group], y[one_of_group]
    once = learn_embeddings(empty(CalibrationBuffer()), NAMES, z, y)
    both = torch.arange(len(y)).repeat(2)
    twice = learn_embeddings(empty(CalibrationBuffer()), NAMES, z[both], y[both], both)
    assert torch.equal(twice.buffer.key, once.buffer.key)
    samples = twice.stored_samples()
    assert len(samples.y) == 2 * int(samples.counted.sum())
    accuracy, expected = (m.calibration.estimates[0].accuracy for m in (twice, once))
    assert expected < 90
    assert accuracy == pytest.approx(expected, abs=2)


def shifted_images(count: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels and content hashes under a distribution shift."""
    z, y = images(3, groups_each=40)
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:count]
    return 1.2 * z[rows] + 0.4, y[rows], 10_000 + rows


@pytest.mark.parametrize("head", [RidgeHead, NCMHead, SELECTS_RULE])
def test_recalibration_replaces_the_buffer_samples(head, tmp_path) -> None:
    old = learned(head=head)
    before, (z, y, key) = old.identity, shifted_images()
    model = old.recalibrated(z, y, key)
    assert old.identity == before != model.identity
    assert torch.equal(model.head(z), old.head(z))
    assert_calibrated_by(model, old.head(z), y, SMALLEST_POWER)
    estimate = model.calibration
    assert estimate.estimate_kind == "measured"
    loo, new_groups = estimate.estimates
    assert new_groups.accuracy == pytest.approx(accuracy_of(old, z, y))
    assert loo == old.calibration.estimates[0]
    event = model.history[-1]
    assert (event.kind, event.parents) == ("recalibrate", [before])
    again = stored(model, tmp_path)
    predictor = again.open_set_predictor(None, 0.9)
    new_images = CalibrationSamples(model.head, z, y, learned=False)
    assert predictor.sets.least == PredictionSets.of(new_images, 0.9).least
    if head is not NCMHead:
        reference = again.open_set_predictor(0.1).reference
        weights = torch.ones(len(y), dtype=torch.float64)
        expected = ReferenceScores(model.head.novelty(z), weights)
        assert torch.equal(reference.scores, expected.scores)
    again.solve()
    assert_calibrated_by(again, again.head(z), y, SMALLEST_POWER)


def test_images_learned_later_calibrate_no_longer() -> None:
    z, y, key = shifted_images()
    model = learned().recalibrated(z, y, key)
    model.begin_task([*NAMES, "a new class"])
    model.observe(z[:50], y[:50], key[:50])
    new_keys = torch.arange(20_000, 20_020)
    model.observe(images(4)[0][:20], torch.full((20,), CLASSES), new_keys)
    model.finish_task()
    assert torch.equal(model.calibration.key, key[50:])
    assert_calibrated_by(model, model.head(z[50:]), y[50:], SMALLEST_POWER)
    model.remove_classes([NAMES[0]])
    assert torch.equal(model.calibration.key, key[50:][y[50:] > 0])
    few = learned().recalibrated(z[:25], y[:25], key[:25])
    learn_embeddings(few, NAMES, z[:10], y[:10], key[:10])
    assert len(few.calibration.key) == 15  # too few to calibrate by
    assert few.calibration.estimate_kind == "found"
    with pytest.raises(UsageError, match="at least 20"):
        learned().recalibrated(z[:19], y[:19], key[:19])
    known = torch.arange(len(y)) % (CLASSES * GROUPS * EACH)
    with pytest.raises(UsageError, match="0 labelled images that the model has not"):
        learned().recalibrated(z, y, known)


def test_groups_that_the_user_gave(tmp_path):
    """They come with content hashes; an image without one, or learned later, stands alone."""
    z, y = images(1)
    group = torch.arange(len(y)) // EACH
    model = empty(CalibrationBuffer())
    given = given_groups(2**40 - np.arange(len(y)), group)
    given[:4] = -1
    learn_embeddings(model, NAMES, z, y, 1000 - torch.arange(len(y)), given)
    assert model.calibration.estimate_kind == "given"
    position = 1000 - model.buffer.key
    expected = torch.where(position < 4, -1 - position, group[position])
    groups = model.buffer.group
    assert torch.equal(groups[:, None] == groups, expected[:, None] == expected)
    scores = model.head.leave_one_out(*model.buffer.items(), groups)
    assert_calibrated_by(model, scores, model.buffer.y)
    again = stored(model, tmp_path)
    new_keys = torch.arange(5000, 5010)
    labels = torch.full((10,), CLASSES)
    learn_embeddings(again, ["new"], images(5)[0][:10], labels, new_keys)
    assert again.calibration.estimate_kind == "given"
    assert len(again.buffer.group.unique()) == len(groups.unique()) + 10


def test_selected_images_are_excluded(tmp_path):
    """They are learned and left out with their group, also after a round trip, until all count."""
    plain = learned()
    key, y = plain.buffer.key, plain.buffer.y
    samples = plain.calibration_samples()
    scores = plain.head.leave_one_out(samples.z, samples.y, samples.groups)
    wrong = scores.argmax(dim=1) != samples.columns
    chosen = key[wrong][::2]
    model = plain.clone()
    model.calibration.exclude_selected(chosen)
    model.solve()
    assert len(chosen) > 3
    before = plain.calibration.estimates[1]
    assert model.calibration.estimates[1].accuracy > before.accuracy
    assert torch.equal(model.buffer.group, plain.buffer.group)
    assert model.calibration_samples().sample_weights().sum() == pytest.approx(len(y))
    scores = model.head.leave_one_out(*model.buffer.items(), model.buffer.group)
    counted = ~torch.isin(key, chosen)
    assert_calibrated_by(model, scores[counted], samples.columns[counted])
    again = stored(model, tmp_path)
    assert again.calibration.estimates[1] == model.calibration.estimates[1]
    again.calibration.exclude_selected(chosen[:0])
    # Of all but one class nothing else would be left.
    again.calibration.exclude_selected(key[y > 0])
    again.solve()
    assert again.calibration.counted(y, key).all()
    assert again.calibration_samples().sample_weights().sum() == len(y)
    again.calibration.exclude_selected(chosen[:0])
    again.solve()
    assert again.calibration.estimates[1] == before
    temperature = pytest.approx(float(plain.head.temperature), rel=1e-9)
    assert float(again.head.temperature) == temperature


def test_the_same_images_give_the_same_estimate() -> None:
    """In one task, in two in another order, by two sites, and with classes forgotten in between."""
    z, y = images(1)
    once = learned()
    again = once.clone()
    rows = y >= 3
    gone = again.head.fresh()
    gone.begin_task([3, 4])
    gone.observe(z[rows], y[rows])
    again.head.subtract_(gone)
    again.remove_classes(NAMES[3:])
    learn_rows(again, z, y, rows, [3, 4])
    expected = once.calibration.estimates[1]
    for model in (*learned_in_parts(CalibrationBuffer, z, y), again):
        same = model.calibration.estimates[1]
        assert model.calibration.estimate_kind == "found"
        assert same.accuracy == pytest.approx(expected.accuracy, abs=1e-6)
        assert same.interval == pytest.approx(expected.interval, abs=1e-6)


def test_of_classes_of_one_group_no_accuracy_is_promised() -> None:
    """Without its group nothing is known of a class."""
    z, y = images(1)
    model = empty(CalibrationBuffer())
    learn_embeddings(model, NAMES, z, y, groups=given_groups(np.arange(CLASSES), y))
    assert model.calibration.estimate_kind == "one_group"
    loo, new_groups = model.calibration.estimates
    assert loo is not None
    assert new_groups is None
    assert "one group" in model.accuracy_sentences()[-1]


@pytest.mark.parametrize(("share", "groups"), [(0.5, 40), (0.9, 200), (1.0, 7)])
def test_the_interval_is_of_the_beta_binomial_distribution(share: float, groups: int):
    hits = share * groups
    posterior = betabinom(groups, hits + 0.5, groups - hits + 0.5)
    expected = 100 * posterior.ppf([0.025, 0.975]) / groups
    assert forecast(share, groups) == pytest.approx(expected)


def test_without_errors_the_interval_is_of_as_many_groups_as_there_may_be() -> None:
    """All of eight groups a class right: ninety percent are possible."""
    z, y = images(1, spread=0.3)
    z = z + 60 * torch.nn.functional.one_hot(y, WIDTH)
    model = learn_embeddings(empty(CalibrationBuffer()), NAMES, z, y)
    accuracy, (low, high) = model.calibration.estimates[1]
    assert accuracy == 100
    assert low < 96 < high == 100


# ---------------------------------------------------------------------- unknowns, prediction sets


def calibrated(head: str = "ridge", count: int = 30) -> Classifier:
    """A model of three classes with calibration samples."""
    model = models.empty(head)
    model.buffer = CalibrationBuffer(60)
    model.calibrated = True
    return models.learn_task(model, ANIMALS, count)


def verdicts(model: Classifier, names: list[str]) -> list:
    z, _, _ = models.samples(names, 30)
    predictor = model.open_set_predictor(unknown=0.1, coverage=0.9)
    return predictor.decisions(z, model.head.probabilities(z))


def test_known_and_unknown_samples() -> None:
    model = calibrated()
    known = verdicts(model, ANIMALS)
    unknown_ones = verdicts(model, ["yak", "zebu"])
    assert sum(bool(v.known) for v in known) >= 0.85 * len(known)
    assert not any(v.known for v in unknown_ones)
    assert all(v.known == (v.p_value > 0.1) for v in [*known, *unknown_ones])
    largest = max(v.p_value for v in unknown_ones)
    assert largest < min(v.p_value for v in known if v.known)
    right = np.repeat(ANIMALS, 30)
    covered = [name in v.prediction_set for name, v in zip(right, known, strict=True)]
    assert np.mean(covered) >= 0.85
    novelty = model.head.novelty(models.samples(ANIMALS, 30)[0])
    assert [v.novelty for v in known] == novelty.tolist()


def test_prediction_sets_are_sorted() -> None:
    model = calibrated()
    z, _, _ = models.samples(["yak"], 5)
    probabilities = model.head.probabilities(z)
    decided = model.open_set_predictor(coverage=0.999).decisions(z, probabilities)
    for verdict, shares in zip(decided, probabilities, strict=True):
        names = verdict.prediction_set or ()
        members = [shares[ANIMALS.index(name)].item() for name in names]
        assert members == sorted(members, reverse=True)
        assert len(members) == 3  # with 60 samples that coverage needs all classes
        assert (verdict.known, verdict.novelty, verdict.p_value) == (None, None, None)


def test_verdicts_follow_every_change() -> None:
    model = calibrated()
    model.open_set_predictor(0.1, 0.9)
    models.learn_task(model, ["yak"], 30)
    assert sum(bool(v.known) for v in verdicts(model, ["yak"])) >= 25
    model.remove_classes(["yak"])
    assert not any(v.known for v in verdicts(model, ["yak"]))
    model.rename("ant", "wasp")
    assert any("wasp" in (v.prediction_set or ()) for v in verdicts(model, ["ant"]))
    before = model.open_set_predictor(0.1, 0.9)
    models.learn_task(model, ["bee"], 30, seed=1)
    assert model.open_set_predictor(0.1, 0.9) is not before


def test_requirements() -> None:
    novelty = torch.zeros(2)
    for model in (models.empty("ridge"), models.learned("ridge")):
        with pytest.raises(UsageError, match=r"no calibration samples.*--model.buffer"):
            model.open_set_predictor(0.05)
        # Of a run: it is measured, but nothing is promised of it.
        nothing = model.open_set_predictor()
        assert nothing.judge(novelty[:, None], novelty, novelty) == {}
    with pytest.raises(UsageError, match="unknown is 5, expected a share between"):
        calibrated().classify([], unknown=5)
    with pytest.raises(UsageError, match="coverage is 1, expected a share"):
        calibrated().classify([], coverage=1)
    with pytest.raises(UnsupportedError, match="NCMHead cannot score novelty"):
        calibrated("ncm").classify([], unknown=0.05)
    with pytest.raises(UnsupportedError, match="NCMHead cannot leave samples out"):
        calibrated("ncm").classify([], coverage=0.95)


def test_what_is_merged_keeps_its_images_for_recalibration() -> None:
    """Whichever model comes first; the one without them need not be calibrated."""
    z, y, key = shifted_images()
    one = learned().recalibrated(z, y, key)
    other = Classifier(one.backbone, RidgeHead(z.shape[1]), CalibrationBuffer())
    new = images(4)[0][:40]
    learn_embeddings(other, ["new"], new, torch.zeros(40).long(), 90_000 + y[:40])
    for pair in ([one, other], [other, one]):
        merged = merge(pair).model
        assert merged.calibrated
        estimate = merged.calibration
        assert estimate.estimate_kind == "measured"
        assert torch.equal(estimate.key, key)
        names = [merged.class_names[label] for label in estimate.y.tolist()]
        assert names == [NAMES[label] for label in y.tolist()]
    again = merge([one, merged], base=one).model  # both have the same images
    assert torch.equal(again.calibration.key, key)


def test_what_a_common_base_shows_of_independence_counts_once() -> None:
    """Where the buffer does not hold all images, by which it would be found again."""
    z, y = images(1)
    base = learn_embeddings(empty(CalibrationBuffer(60)), NAMES, z, y)
    shown = base.calibration.group_errors
    grown = []
    for site in (5, 6):
        model = base.clone()
        new = images(site)[0][:40]
        keys = 50_000 * site + torch.arange(40)
        learn_embeddings(model, [f"site {site}"], new, torch.full((40,), CLASSES), keys)
        grown.append(model)
    merged = merge(grown, base=base).model.calibration.group_errors
    expected = sum(model.calibration.group_errors for model in grown) - shown
    assert merged[2] == expected[2] == len(y) + 80


def test_nothing_is_known_of_classes_without_a_group() -> None:
    estimate = Estimate(90.0, Interval(80.0, 95.0))
    known = widened(estimate, estimate, 0.0).interval
    assert widened(estimate, estimate, 25.0).interval == (known.low - 25, known.high)


def test_an_accuracy_is_as_certain_as_the_smallest_classes_allow() -> None:
    """It is the mean over classes. An image of each group, so that they are independent."""
    sizes = [200, 200, 200, 3, 3]
    new, labels = images(2, groups_each=40)
    held = 0
    for seed in range(10, 20):
        z, y = images(seed, groups_each=200)
        of_class = [
            (y == c).nonzero()[: n * EACH : EACH, 0] for c, n in enumerate(sizes)
        ]
        rows = torch.cat(of_class)
        model = empty(CalibrationBuffer(), SELECTS_RULE)
        learn_embeddings(model, NAMES, z[rows], y[rows])
        low, high = model.calibration.estimates[0].interval
        held += low <= accuracy_of(model, new, labels) <= high
    assert held >= 8  # one, were each image as certain as another


def test_with_one_image_a_class_no_image_is_called_unknown() -> None:
    """Nothing is known without it."""
    z, y = images(1)
    first = torch.tensor([(y == c).nonzero()[0].item() for c in range(CLASSES)])
    model = learn_embeddings(empty(CalibrationBuffer()), NAMES, z[first], y[first])
    decisions = model.open_set_predictor(0.05).decisions(z, model.head.probabilities(z))
    assert all(decision.known for decision in decisions)
