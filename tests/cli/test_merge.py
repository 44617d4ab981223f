"""Merging: equal to one run over all images where the statistics are sums, refused where it would
not be.
"""

import shutil
from pathlib import Path

import pytest
import torch

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.model.classifier import Classifier
from tests.cli.test_extend import fit
from tests.command_line import assert_ends, make_images, run_cifnet
from tests.models import empty, learned, samples

NAMES = ["ant", "bee", "cat", "dog"]
RIDGE = ["--model.head", "RidgeHead"]
ADDITIVE = [RIDGE, *(["--model.head", name] for name in ("NCMHead", "SLDAHead"))]
ADDITIVE += [["--model.head", "ACILHead", "--model.head.width", "50"]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of four classes; site A has half of ant, bee and cat, site B the others, and all of
    dog.
    """
    root = tmp_path_factory.mktemp("made")
    make_images(root / "all" / "train", NAMES, 8)
    make_images(root / "all" / "val", NAMES, 2)
    for site, odd in (("a", 0), ("b", 1)):
        shutil.copytree(root / "all", root / site)
        for path in (root / site / "train").rglob("*.png"):
            if int(path.stem) % 2 != odd and path.parent.name != "dog":
                path.unlink()
    shutil.rmtree(root / "a" / "train" / "dog")
    shutil.rmtree(root / "a" / "val" / "dog")
    return root


def merge(*arguments: object) -> int:
    return main(["merge", *map(str, arguments)])


def site(*images: tuple[torch.Tensor, list[str], torch.Tensor]) -> Classifier:
    """What one place has learned, in one task, from embeddings, names of classes and keys; with a
    buffer of 20.
    """
    model = empty("ridge")
    model.buffer = cifnet_pl.CalibrationBuffer(20)
    model.begin_task(NAMES)
    for z, class_of, keys in images:
        model.observe(z, torch.tensor(model.labels(class_of)), keys)
    model.finish_task()
    return model


def scores_by_name(model: Classifier, z: torch.Tensor) -> torch.Tensor:
    """Columns in alphabetical order."""
    return model.head(z)[
        :, sorted(range(len(model.class_names)), key=model.class_names.__getitem__)
    ]


def difference(model: Classifier, other: Classifier) -> float:
    """Relative difference of the scores of random embeddings."""
    z = torch.randn(
        50, model.head.in_features, generator=torch.Generator().manual_seed(0)
    )
    ours = scores_by_name(model, z)
    theirs = scores_by_name(other, z)
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("head", ADDITIVE, ids=lambda options: options[1])
def test_equals_one_run_over_all_images(head, made, tmp_path, capsys):
    """Other tasks, another order of classes, and a class that only one site has."""
    fit(
        made / "a",
        tmp_path / "a",
        *head,
        "--data.class_order",
        "[2, 0, 1]",
        "--data.classes_per_task",
        "1",
    )
    fit(made / "b", tmp_path / "b", *head, "--data.classes_per_task", "2")
    fit(made / "all", tmp_path / "all", *head, "--data.classes_per_task", "4")
    capsys.readouterr()
    sites = [tmp_path / site / "default" for site in ("a", "b")]
    assert merge(*sites, "--output", tmp_path / "c") == 0
    assert "2 models merged: 4 classes from 32 images" in capsys.readouterr().out
    assert merge(*sites, "--output", tmp_path / "c") == 0
    assert "is already there: it holds this model" in capsys.readouterr().err
    merged = cifnet_pl.load(tmp_path / "c")
    pooled = cifnet_pl.load(tmp_path / "all" / "default")
    assert merged.class_names == ["cat", "ant", "bee", "dog"]
    assert merged.counts == dict.fromkeys(merged.class_names, 8)
    assert difference(merged, pooled) <= 1e-9
    assert_ends(main(["info", "--model", str(tmp_path / "c")]), 0, "merge", capsys)
    given = {"images": made / "all" / "val", "output": tmp_path / "out.csv"}
    assert run_cifnet("classify", **given, model=tmp_path / "c") == 0
    rows = (tmp_path / "out.csv").read_text().splitlines()[1:]
    assert all(
        Path(row.split(",")[0]).parent.name == row.split(",")[1] for row in rows
    ), rows


def test_three_sites_of_which_one_has_a_buffer_for_calibration(tmp_path: Path):
    """All merged buffers are one: the same images as if one site had seen them all."""
    sites = []
    for seed in range(3):
        sites.append(samples(NAMES, 6, seed))
        site(sites[-1]).save(tmp_path / f"{seed}")
    assert (
        merge(
            *(tmp_path / f"{seed}" for seed in range(3)),
            "--output",
            tmp_path / "merged",
        )
        == 0
    )
    pooled = site(*sites)
    merged = cifnet_pl.load(tmp_path / "merged")
    assert difference(merged, pooled) <= 1e-9
    assert torch.equal(merged.buffer.key, pooled.buffer.key)
    assert torch.equal(merged.buffer.z, pooled.buffer.z)
    assert torch.equal(merged.buffer.y, pooled.buffer.y)


@pytest.mark.parametrize(
    ("head", "other", "reason"),
    [
        ("cifnet", "cifnet", "cannot merge"),
        ("ridge", "ncm", "cannot combine RidgeHead with NCMHead"),
        ("ridge", "ridge-float32", "cannot combine heads with different"),
        ("dsal", "dsal", "cannot merge"),
    ],
)
def test_refused(
    head: str,
    other: str,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    learned(head).save(tmp_path / "a")
    learned(other, seed=1).save(tmp_path / "b")
    assert merge(tmp_path / "a", tmp_path / "b", "--output", tmp_path / "c") in (1, 2)
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
    for arguments, reason in (
        ([tmp_path / "a", "--output", tmp_path / "c"], "expected at least two"),
        (
            [tmp_path / "a", tmp_path / "b" / ".." / "a", "--output", tmp_path / "c"],
            "is given twice",
        ),
        (
            [tmp_path / "a", tmp_path / "b", "--output", tmp_path / "a"],
            "holds a bundle already",
        ),
    ):
        assert_ends(merge(*arguments), 2, reason, capsys)
    assert_ends(
        merge(tmp_path / "a", tmp_path / "none", "--output", tmp_path / "c"),
        1,
        "no model at",
        capsys,
    )


def test_a_class_that_comes_back_after_its_removal_is_mentioned(made, tmp_path, capsys):
    """What the others learned from its images when it was there still counts against it."""
    for site in ("a", "b"):
        fit(made / site, tmp_path / site, *RIDGE, "--data.classes_per_task", "1")
    site_a = tmp_path / "a" / "default"
    site_b = tmp_path / "b" / "default"
    given = {"model": site_a, "class_": "bee", "output": tmp_path / "without"}
    assert run_cifnet("forget", **given) == 0
    for pair in ((tmp_path / "without", site_b), (site_b, tmp_path / "without")):
        capsys.readouterr()
        assert merge(*pair, "--output", tmp_path / "m", "--overwrite") == 0
        assert "if it is among bee, dog, " in capsys.readouterr().err
        assert cifnet_pl.load(tmp_path / "m").remembers_removed
    assert merge(site_a, site_b, "--output", tmp_path / "m", "--overwrite") == 0
    assert capsys.readouterr().err == ""
