"""Calibration leaves groups out together, or uses labelled images that were not learned."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import cifnet_pl
from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import CalibrationBuffer, given_groups
from cifnet_pl.heads import Head, NCMHead, RidgeHead
from cifnet_pl.heads.probabilities import (
    SMALLEST_POWER,
    CalibrationSamples,
    PredictionSets,
    ReferenceScores,
    fit_probabilities,
)
from cifnet_pl.model.assembly import assemble
from cifnet_pl.model.bundle import read_bundle
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.merge import merge
from cifnet_pl.utilities.errors import UsageError
from tests.models import learn_embeddings, tensors_equal

SIDE = 4
WIDTH = 3 * SIDE**2
CLASSES = 5
GROUPS = 8
EACH = 4
NAMES = [f"class {c}" for c in range(CLASSES)]


def images(
    seed: int, spread: float = 0.7, groups_each: int = GROUPS
) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings of five classes, labels and groups: images of a group share a component."""
    draw = torch.Generator().manual_seed(seed)
    y, group = (
        torch.arange(CLASSES * groups_each * EACH) // each
        for each in (groups_each * EACH, EACH)
    )
    scenes = torch.randn(CLASSES * groups_each, WIDTH, generator=draw)
    classes = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))
    return (
        classes[y]
        + 1.2 * scenes[group]
        + spread * torch.randn(len(y), WIDTH, generator=draw),
        y,
        group,
    )


def empty(buffer: CalibrationBuffer | None, head: type[Head] = RidgeHead) -> Classifier:
    """A model that knows nothing, and is calibrated if it has a buffer."""
    return Classifier(
        build_backbone(f"pixels:{SIDE}"),
        head(WIDTH),
        buffer,
        [],
        SIDE,
        calibrated=buffer is not None,
    )


def learned(
    spread: float = 0.7, groups_each: int = GROUPS, head: type[Head] = RidgeHead
) -> Classifier:
    """A model that learned images with content hashes 0, 1, …, group after group."""
    z, y, _ = images(1, spread, groups_each)
    return learn_embeddings(
        empty(CalibrationBuffer() if head is RidgeHead else None, head), NAMES, z, y
    )


def temperature_of(
    scores: Tensor, y: Tensor, smallest_power: float = 1.0
) -> tuple[float, float]:
    """Of scores without groups; of images alone the power is fitted, too."""
    fit = fit_probabilities([scores], y, smallest_power)
    return 1 / fit.weights[0], fit.power


def calibrated_by(model: Classifier) -> tuple[float, float]:
    return float(model.head.temperature), float(model.head.odds_power)


def accuracy_of(model: Classifier, z: Tensor, y: Tensor) -> float:
    return 100 * (model.head.predict(z) == y).double().mean().item()


def test_groups_are_left_out_together() -> None:
    model = learned()
    z, y = model.buffer.items()
    true_groups = model.buffer.key // EACH
    groups = model.buffer.group
    together = groups[:, None] == groups
    same_group = true_groups[:, None] == true_groups
    assert model.calibration.estimate_kind == "found"
    assert together[same_group].double().mean() > 0.99
    scores = model.head.leave_one_out(z, y, groups)
    assert calibrated_by(model) == pytest.approx(temperature_of(scores, y), rel=1e-9)
    low, high = model.calibration.new_groups.interval
    assert low < model.calibration.new_groups.accuracy < high
    new, labels, _ = images(2, groups_each=40)
    assert low < accuracy_of(model, new, labels) < high
    alone = model.head.leave_one_out(z, y)
    assert model.calibration.loo.accuracy == pytest.approx(
        100 * (alone.argmax(1) == y).double().mean().item()
    )
    assert model.calibration.loo.accuracy > model.calibration.new_groups.accuracy + 3
    predictor = model.open_set_predictor(0.05, 0.9)
    hit = predictor.sets.of_probabilities(model.head.probabilities(new)).gather(
        1, labels[:, None]
    )
    assert hit.double().mean() > 0.85
    assert (
        predictor.reference.p_values(model.head.novelty(new)) <= 0.05
    ).double().mean() < 0.1


def test_independent_images_have_one_accuracy_and_few_images_none() -> None:
    independent = learned(spread=8.0).calibration
    assert independent.estimate_kind == "independent"
    assert independent.loo.accuracy == independent.new_groups.accuracy
    few = learned(groups_each=2).calibration
    assert (few.estimate_kind, few.new_groups) == ("few", None)
    assert few.loo is not None
    assert learned(groups_each=19 // EACH).calibration.estimate_kind == "few"


def true_groups_are_whole(model: Classifier) -> bool:
    """Whether of each day that is in the buffer all images are there."""
    sizes = torch.unique(model.buffer.key // EACH, return_counts=True)[1]
    return bool((sizes == EACH).all())


@pytest.mark.parametrize("capacity", [48, 100])
def test_a_small_buffer_holds_whole_groups_and_promises_what_is_true(
    capacity: int,
) -> None:
    """In one task, in two, and of two sites that are merged; also after a class is gone."""
    z, y, _ = images(1, spread=0.4)
    new, labels, _ = images(2, 0.4, groups_each=40)
    once = learn_embeddings(empty(CalibrationBuffer(capacity)), NAMES, z, y)
    in_two = empty(CalibrationBuffer(capacity))
    for classes in ([4, 1, 3], [2, 0]):
        learn_rows(in_two, z, y, torch.isin(y, torch.tensor(classes)), classes)
    sites = [empty(CalibrationBuffer(capacity)) for _ in range(2)]
    for half, site in enumerate(sites):
        rows = (torch.arange(len(y)) // EACH) % 2 == half
        learn_rows(site, z, y, rows, list(range(CLASSES)))
    fewer = once.clone()
    fewer.remove_classes(NAMES[4:])
    for model in (once, in_two, merge(sites).model, fewer):
        estimate = model.calibration
        known = torch.tensor([NAMES[c] in model.class_names for c in labels.tolist()])
        names = [NAMES[c] for c in labels[known].tolist()]
        true = accuracy_of(model, new[known], torch.tensor(model.labels(names)))
        assert 0 < len(model.buffer.y) <= capacity
        assert true_groups_are_whole(model)
        assert estimate.estimate_kind == "found"
        low, high = estimate.new_groups.interval
        assert low <= true <= high
        assert estimate.new_groups.accuracy < estimate.loo.accuracy - 5
        assert "upper bound" not in " ".join(model.accuracy_sentences())
    assert in_two.calibration.loo.accuracy > 97


def test_a_class_that_was_never_at_hand_promises_nothing_and_names_the_option() -> None:
    """All images of a class must be at hand once, to tell whether they come in groups."""
    z, y, _ = images(1)
    small = CalibrationBuffer(capacity=EACH * GROUPS - 1)
    model = learn_embeddings(empty(small), NAMES, z, y)
    assert model.calibration.estimate_kind == "incomplete"
    assert model.calibration.new_groups is None
    assert "buffer.init_args.capacity" in model.accuracy_sentences()[-1]


def test_where_groups_show_late_only_those_that_are_whole_calibrate() -> None:
    """Independent images are drawn one by one; what is left of them is part of unknown groups."""
    model = empty(CalibrationBuffer(60))
    z, y, _ = images(3, groups_each=40)
    rows = (y < 2) & (torch.arange(len(y)) % EACH == 0)
    learn_rows(model, z, y, rows, [0, 1])
    assert model.calibration.estimate_kind == "independent"
    z, y, _ = images(1, spread=0.4)
    for label in range(CLASSES):  # so alike that images are predicted wrongly
        z[y == label] -= 0.5 * z[y == label].mean(dim=0)
    learn_rows(model, z, y, y >= 2, [2, 3, 4])
    assert model.calibration.estimate_kind == "found"
    assert true_groups_are_whole(model)
    assert model.buffer.y.unique().tolist() == [2, 3, 4]


def test_models_of_before_keep_their_groups(tmp_path: Path) -> None:
    """They say nothing of the errors that showed them."""
    model = learned()
    model.save(tmp_path / "bundle")
    stored = read_bundle(tmp_path / "bundle")
    for name in ("calibration.group_errors", "calibration.is_given"):
        del stored.tensors[name]
    stored.tensors["calibration.groups"] = stored.tensors.pop("buffer.group")
    for name in ("given", "given_key"):
        stored.tensors[f"calibration.{name}"] = torch.zeros(0, dtype=torch.int64)
    again = assemble(stored)
    assert again.calibration.leaves_groups_out
    assert torch.equal(again.buffer.group, model.buffer.group)


def test_a_class_of_few_images_counts_as_much_as_another() -> None:
    z, y, _ = images(1)
    rows = (y > 0) | (torch.arange(len(y)) < 8)
    model = learn_embeddings(empty(CalibrationBuffer()), NAMES, z[rows], y[rows])
    stored, labels = model.buffer.items()
    right = (
        model.head.leave_one_out(stored, labels, model.buffer.group).argmax(1) == labels
    )
    each = torch.stack([right[labels == c].double().mean() for c in range(CLASSES)])
    assert model.calibration.new_groups.accuracy == pytest.approx(
        100 * each.mean().item(), abs=2
    )
    assert (
        model.calibration.new_groups.accuracy < 100 * right.double().mean().item() - 1
    )


def test_a_single_class_has_no_accuracy() -> None:
    """Every prediction is right, whatever the image shows."""
    model = learned()
    model.remove_classes(NAMES[1:])
    assert (model.calibration.loo, model.calibration.new_groups) == (
        None,
        None,
    )
    assert model.accuracy_sentences() == []


def test_groups_are_stored(tmp_path: Path) -> None:
    model = learned()
    model.save(tmp_path / "bundle")
    again = cifnet_pl.load(tmp_path / "bundle", device="cpu")
    assert tensors_equal(again.tensors(), model.tensors())
    assert again.calibration.estimate_kind == "found"
    again.remove_classes(NAMES[:1])
    assert len(again.buffer.group) == (CLASSES - 1) * GROUPS * EACH


def shifted_images(count: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels and content hashes under a distribution shift."""
    z, y, _ = images(3, groups_each=40)
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:count]
    return 1.2 * z[rows] + 0.4, y[rows], 10_000 + rows


@pytest.mark.parametrize("head", [RidgeHead, NCMHead])
def test_recalibration_replaces_the_buffer_samples(
    head: type[Head], tmp_path: Path
) -> None:
    old = learned(head=head)
    before, (z, y, key) = old.identity, shifted_images()
    model = old.recalibrated(z, y, key)
    assert old.identity == before != model.identity
    assert torch.equal(model.head(z), old.head(z))
    assert calibrated_by(model) == pytest.approx(
        temperature_of(old.head(z), y, SMALLEST_POWER), rel=1e-9
    )
    assert model.calibration.estimate_kind == "measured"
    assert model.calibration.new_groups.accuracy == pytest.approx(
        accuracy_of(old, z, y)
    )
    assert model.calibration.loo == old.calibration.loo
    assert (model.history[-1].kind, model.history[-1].parents) == (
        "recalibrate",
        [before],
    )
    model.save(tmp_path / "bundle")
    again = cifnet_pl.load(tmp_path / "bundle", device="cpu")
    assert tensors_equal(again.tensors(), model.tensors())
    predictor = again.open_set_predictor(None, 0.9)
    expected = PredictionSets.of(
        CalibrationSamples(model.head, z, y, learned=False), 0.9
    )
    assert predictor.sets.least == expected.least
    if head is RidgeHead:
        reference = again.open_set_predictor(0.1).reference
        weights = torch.ones(len(y), dtype=torch.float64)
        assert torch.equal(
            reference.scores, ReferenceScores(model.head.novelty(z), weights).scores
        )


def test_images_learned_later_calibrate_no_longer() -> None:
    z, y, key = shifted_images()
    model = learned().recalibrated(z, y, key)
    model.begin_task([*NAMES, "a new class"])
    model.observe(z[:50], y[:50], key[:50])
    model.observe(
        images(4)[0][:20], torch.full((20,), CLASSES), torch.arange(20_000, 20_020)
    )
    model.finish_task()
    assert torch.equal(model.calibration.key, key[50:])
    assert calibrated_by(model) == pytest.approx(
        temperature_of(model.head(z[50:]), y[50:], SMALLEST_POWER), rel=1e-9
    )
    model.remove_classes([NAMES[0]])
    assert torch.equal(model.calibration.key, key[50:][y[50:] > 0])
    with pytest.raises(UsageError, match="at least 20"):
        learned().recalibrated(z[:19], y[:19], key[:19])
    with pytest.raises(
        UsageError, match="0 labelled images that the model has not learned"
    ):
        learned().recalibrated(z, y, torch.arange(len(y)) % (CLASSES * GROUPS * EACH))


def test_groups_that_the_user_gave(tmp_path: Path) -> None:
    """They come with the images' content hashes; an image without one stands alone, and so do those
    learned later.
    """
    z, y, group = images(1)
    model = empty(CalibrationBuffer())
    model.begin_task(NAMES)
    keys = 1000 - torch.arange(len(y))
    given = given_groups(2**40 - group)
    given[:4] = -1
    model.observe(z, y, keys, given)
    model.finish_task()
    assert model.calibration.estimate_kind == "given"
    position = 1000 - model.buffer.key
    expected = torch.where(position < 4, -1 - position, group[position])
    groups = model.buffer.group
    assert torch.equal(groups[:, None] == groups, expected[:, None] == expected)
    scores = model.head.leave_one_out(*model.buffer.items(), groups)
    assert calibrated_by(model) == pytest.approx(
        temperature_of(scores, model.buffer.y), rel=1e-9
    )
    model.save(tmp_path / "bundle")
    again = cifnet_pl.load(tmp_path / "bundle", device="cpu")
    learn_embeddings(
        again,
        ["new"],
        images(5)[0][:10],
        torch.full((10,), CLASSES),
        torch.arange(5000, 5010),
    )
    assert again.calibration.estimate_kind == "given"
    assert len(again.buffer.group.unique()) == len(groups.unique()) + 10


def test_selected_images_are_excluded(tmp_path: Path) -> None:
    """They are learned and left out with their group, also after a round trip, until all count."""
    plain = learned()
    assert plain.buffer is not None
    samples = plain.calibration_samples()
    assert samples is not None
    wrong = samples.scores().argmax(dim=1) != samples.columns
    chosen = plain.buffer.key[wrong][::2]
    model = plain.clone()
    model.calibration.exclude_selected(chosen)
    model.solve()
    assert len(chosen) > 3
    assert model.calibration.new_groups.accuracy > plain.calibration.new_groups.accuracy
    assert torch.equal(model.buffer.group, plain.buffer.group)
    assert (model.calibration_samples() or samples).weights().sum() == pytest.approx(
        len(samples.y)
    )
    groups = model.buffer.group
    scores = model.head.leave_one_out(*model.buffer.items(), groups)  # type: ignore[union-attr]
    counted = ~torch.isin(plain.buffer.key, chosen)
    assert calibrated_by(model) == pytest.approx(
        temperature_of(scores[counted], samples.columns[counted]), rel=1e-9
    )
    model.save(tmp_path / "bundle")
    again = cifnet_pl.load(tmp_path / "bundle", device="cpu")
    assert (
        again.calibration.new_groups.accuracy == model.calibration.new_groups.accuracy
    )
    again.calibration.exclude_selected(chosen[:0])
    again.calibration.exclude_selected(
        plain.buffer.key[plain.buffer.y > 0]
    )  # of all but one class nothing else would be left
    again.solve()
    assert again.calibration.counted(plain.buffer.y, plain.buffer.key).all()
    assert (again.calibration_samples() or samples).weights().sum() == len(
        plain.buffer.y
    )
    again.calibration.exclude_selected(chosen[:0])
    again.solve()
    assert (
        again.calibration.new_groups.accuracy == plain.calibration.new_groups.accuracy
    )
    assert calibrated_by(again) == pytest.approx(calibrated_by(plain), rel=1e-9)


def test_the_same_images_give_the_same_estimate() -> None:
    """In one task, in two in another order, by two sites merged, and after two classes were
    forgotten exactly and learned again.
    """
    z, y, _ = images(1)
    once = learned()
    in_two = empty(CalibrationBuffer())
    for classes in ([4, 1, 3], [2, 0]):
        learn_rows(in_two, z, y, torch.isin(y, torch.tensor(classes)), classes)
    sites = [empty(CalibrationBuffer()) for _ in range(2)]
    for half, site in enumerate(sites):
        rows = (torch.arange(len(y)) // EACH) % 2 == half
        learn_rows(site, z, y, rows, list(range(CLASSES)))
    again = once.clone()
    rows = y >= 3
    gone = again.head.fresh()
    gone.begin_task([3, 4])
    gone.observe(z[rows], y[rows])
    again.head.subtract_(gone)
    again.remove_classes(NAMES[3:])
    learn_rows(again, z, y, rows, [3, 4])
    for model in (in_two, merge(sites).model, again):
        same = model.calibration
        assert same.estimate_kind == "found"
        assert same.new_groups.accuracy == pytest.approx(
            once.calibration.new_groups.accuracy, abs=1e-6
        )
        assert same.new_groups.interval == pytest.approx(
            once.calibration.new_groups.interval, abs=1e-6
        )


def learn_rows(
    model: Classifier, z: Tensor, y: Tensor, rows: Tensor, classes: list[int]
) -> None:
    """Learn the images at some rows as a task of some classes."""
    names = [NAMES[c] for c in classes]
    model.begin_task(names)
    labels = torch.tensor(model.labels([NAMES[c] for c in y[rows].tolist()]))
    model.observe(z[rows], labels, rows.nonzero().flatten())
    model.finish_task()


def test_of_classes_of_one_group_no_accuracy_is_promised() -> None:
    """Without its group nothing is known of a class."""
    z, y, _ = images(1)
    model = empty(CalibrationBuffer())
    model.begin_task(NAMES)
    keys = torch.arange(len(y))
    model.observe(z, y, keys, given_groups(y))
    model.finish_task()
    calibration = model.calibration
    assert calibration.estimate_kind == "one_group"
    assert calibration.loo is not None
    assert calibration.new_groups is None
    assert "one group" in model.accuracy_sentences()[-1]


def test_without_errors_the_interval_is_of_as_many_groups_as_there_may_be() -> None:
    """All of eight groups a class right: ninety percent are possible."""
    z, y, _ = images(1, spread=0.3)
    z = z + 60 * torch.nn.functional.one_hot(y, WIDTH)
    model = learn_embeddings(empty(CalibrationBuffer()), NAMES, z, y)
    assert model.calibration.new_groups.accuracy == 100
    low, high = model.calibration.new_groups.interval
    assert low < 96 < high == 100
