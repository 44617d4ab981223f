"""Merging: equal to one run over all images where statistics are sums, else refused."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import cifnet_pl
from cifnet_pl.model.classifier import Classifier
from tests.cli.test_extend import assert_same_scores, queries
from tests.command_line import assert_ends, run_cifnet
from tests.models import empty, learned, samples, tensors_equal

NAMES = ["ant", "bee", "cat", "dog"]


def merge(*models: object, output: Path, overwrite: bool = False) -> int:
    given = {"output": output, "overwrite": overwrite}
    return run_cifnet("merge", *map(str, models), **given)


def site(head: str, tasks: Sequence[Sequence[str]], *seeds: int) -> Classifier:
    """What a place has learned from embeddings of some seeds, in some tasks; with a buffer."""
    model = empty(head)
    if head == "ridge":
        model.buffer = cifnet_pl.CalibrationBuffer(20)
    for names in tasks:
        model.begin_task(names)
        for seed in seeds:
            # A class that only one site has.
            known = [name for name in names if name != "dog" or seed]
            z, class_of, keys = samples(known, 6, seed)
            model.observe(z, torch.tensor(model.labels(class_of)), keys)
        model.finish_task()
        model.record_event("task", 6 * len(names) * len(seeds))
    return model


@pytest.mark.parametrize("head", ["ridge", "ncm", "slda", "acil"])
def test_equals_one_model_of_all(head: str, tmp_path: Path, capsys):
    """Other tasks, another order of classes, a class that two sites have; one buffer of all."""
    site(head, [["cat"], ["ant"], ["bee"]], 0).save(tmp_path / "a")
    site(head, [["ant", "bee"], ["cat", "dog"]], 1).save(tmp_path / "b")
    site(head, [NAMES], 2).save(tmp_path / "c")
    sites = [tmp_path / name for name in "abc"]
    target = tmp_path / "merged"
    code = merge(*sites, output=target)
    assert_ends(code, 0, "3 models merged: 4 classes from 66 images", capsys)
    assert merge(*sites, output=target) == 0
    assert "is already there: it holds this model" in capsys.readouterr().err
    merged = cifnet_pl.load(target)
    assert merged.class_names == ["cat", "ant", "bee", "dog"]
    assert list(merged.counts.values()) == [18, 18, 18, 12]
    assert merged.history[-1].kind == "merge"
    pooled = site(head, [merged.class_names], 0, 1, 2)
    assert_same_scores(merged, pooled, queries())
    if head == "ridge":
        ours, theirs = merged.buffer.state_dict(), pooled.buffer.state_dict()
        assert tensors_equal(ours, theirs)


@pytest.mark.parametrize(
    ("head", "other", "reason"),
    [
        ("cifnet", "cifnet", "cannot merge"),
        ("ridge", "ncm", "cannot combine RidgeHead with NCMHead"),
        ("ridge", "ridge-float32", "cannot combine heads with different"),
    ],
)
def test_refused(head: str, other: str, reason: str, tmp_path: Path, capsys):
    learned(head).save(tmp_path / "a")
    learned(other, seed=1).save(tmp_path / "b")
    assert merge(tmp_path / "a", tmp_path / "b", output=tmp_path / "c") in (1, 2)
    errors = capsys.readouterr().err
    assert errors.startswith(
        f"cifnet: error: cannot merge {tmp_path / 'b'} into {tmp_path / 'a'}: "
    )
    assert reason in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "c").exists()


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    learned("ridge").save(tmp_path / "a")
    learned("ridge").save(tmp_path / "b")
    one, other = tmp_path / "a", tmp_path / "b"
    again = other / ".." / "a"
    new = tmp_path / "c"
    for models, output, code, reason in (
        ([one], new, 2, "expected at least two"),
        ([one, again], new, 2, "learned by both and would count twice"),
        ([one, other], one, 2, "holds a bundle already"),
        ([one, tmp_path / "none"], new, 1, "no model at"),
    ):
        assert_ends(merge(*models, output=output), code, reason, capsys)


def test_a_class_that_comes_back_after_its_removal_is_mentioned(tmp_path, capsys):
    """What the others learned from its images when it was there still counts against it."""
    old, site_b = tmp_path / "old", tmp_path / "b"
    without = tmp_path / "without"
    site("ridge", [NAMES[:3]], 0).save(old)
    site("ridge", [NAMES], 1).save(site_b)
    cifnet_pl.forget(cifnet_pl.load(old), "bee").model.save(without)
    for pair in ((without, site_b), (site_b, without)):
        assert merge(*pair, output=tmp_path / "m", overwrite=True) == 0
        assert "if it is among bee, dog, " in capsys.readouterr().err
        assert cifnet_pl.load(tmp_path / "m").removals
    assert merge(old, site_b, output=tmp_path / "m", overwrite=True) == 0
    assert capsys.readouterr().err == ""
