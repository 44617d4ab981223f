"""``forget``: what it removes, and what it leaves."""

import pytest
import torch

from cifnet_pl import forget
from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import buffer_samples
from cifnet_pl.heads import RidgeHead
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.forget import _subtract_images
from cifnet_pl.utilities.errors import DataError, UnsupportedError, UsageError
from tests.cli.test_extend import queries
from tests.command_line import make_images
from tests.data.layouts import vectors
from tests.models import learn_task, learned, samples


@pytest.mark.parametrize("head", ["cifnet", "ridge", "knn", "logistic", "dsal"])
def test_removal_leaves_the_others_alone(head: str):
    model = learned(head)
    kept = [i for i, name in enumerate(model.class_names) if name != "dog"]
    before = model.head(queries())[:, kept]
    model.remove_classes(["dog"])
    assert model.class_names == ["ant", "bee", "cat", "elk", "fox"]
    assert model.tasks == [["ant", "bee"], ["cat"], ["elk", "fox"]]
    if head not in ("knn", "dsal"):
        torch.testing.assert_close(model.head(queries()), before, rtol=0, atol=1e-12)
    if model.buffer is not None:
        assert set(model.buffer.y.tolist()) <= set(model.head.classes)
        assert len(model.buffer.y) == 10  # two of each class


def test_no_image_at_all_is_said():
    with pytest.raises(UsageError, match="images is empty"):
        forget(learned("ridge"), "ant", [])


def test_a_head_that_keeps_no_sums_refuses_images(tmp_path):
    images = make_images(tmp_path, ["ant"], 3)
    model = learned("logistic")
    with pytest.raises(UnsupportedError, match="LogisticHead"):
        forget(model, "ant", images)
    removed = forget(model, "ant")
    assert (removed.exact, removed.ignored) == (False, 0)
    assert not removed.model.head.subtracts


@pytest.mark.parametrize("remember", [True, False])
def test_a_forgotten_class_leaves_statistics_as_if_it_had_never_been_there(remember):
    """Also where most of its images are duplicates: each of 50 is there three times."""
    z = torch.tensor(vectors(210, width=6, classes=2)[0])
    z[50:100] = z[100:150] = z[:50]
    y = torch.tensor([0] * 150 + [1] * 60)
    hashes = torch.cat([torch.arange(50).repeat(3), 50 + torch.arange(60)])
    samples = buffer_samples(z, y, hashes)
    empty = Classifier(build_backbone("none:6"), RidgeHead(6, remember=remember))
    never = empty.clone()
    later = samples.at(slice(150, None))
    never.learn_embeddings(["b"], later._replace(y=later.y - 1))
    forgotten = empty.clone()
    forgotten.learn_embeddings(["a", "b"], samples)
    if remember:
        other = buffer_samples(
            z[:9] + 1, torch.zeros(9, dtype=int), torch.arange(200, 209)
        )
        forgotten.learn_embeddings(["c"], other)
        result = forget(forgotten, ["a", "c"])
        assert (result.exact, result.recalled) == (True, True)
        forgotten = result.model
        assert not forgotten.removals
    else:
        _subtract_images(forgotten, "a", dict(enumerate(z[:50])))
        forgotten.remove_classes(["a"])
    assert int(forgotten.head.sums.seen) == 60
    ours = forgotten.tensors()
    for name, tensor in never.tensors().items():
        if not name.endswith("labels"):  # the label of a class never changes
            torch.testing.assert_close(ours[name], tensor, rtol=1e-9, atol=1e-9)


def test_nothing_in_a_bundle_identifies_an_image_of_a_forgotten_class(tmp_path):
    model = learned("ridge-auto")
    hashes = [int(key) for key in model.images.of_label(model.labels(["dog"])[0])]
    others = [int(key) for key in model.images.of_label(model.labels(["cat"])[0])]
    keys = torch.tensor(hashes + others)
    model.calibration.exclude_selected(keys)
    model.calibrate()

    def found(model: Classifier, keys: list[int]) -> int:
        model.save(tmp_path, overwrite=True)
        content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        return sum(
            key.to_bytes(8, "little") in content or str(key).encode() in content
            for key in keys
        )

    assert found(model, hashes) == len(hashes)
    model.remove_classes(["dog"])
    assert found(model, hashes) == 0
    assert found(model, others) == len(others)


def test_an_aborted_task_leaves_no_hash():
    """Neither of a new class nor of one that got more images."""
    model = learned("ridge")
    before = model.images.occurrences()
    z, _, keys = samples(["ant", "gnu"])
    model.begin_task(["ant", "gnu", "hen"])
    labels = torch.tensor(model.labels(["ant", "gnu"])).repeat_interleave(7)
    model.observe(z, labels, keys + 1)
    with pytest.raises(DataError, match="'hen'"):
        model.finish_task()
    model.abort_task()
    assert model.images.occurrences() == before
    learn_task(model, ["kiwi"])
    assert len(model.images.of_label(model.labels(["kiwi"])[0])) == 7
