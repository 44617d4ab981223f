"""Engines: which one runs a network, that both give the same embeddings, and what a run makes of
them.
"""

import itertools
import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.backbones import (
    BACKBONES,
    Backbone,
    Preprocessing,
    build_backbone,
    engines,
)
from cifnet_pl.backbones.engines import piece_ends
from cifnet_pl.utilities.errors import CifnetError, UsageError
from tests.command_line import assert_ends, assert_same_model, learned, make_images
from tests.models import config_of

SHAPE = Preprocessing(16)


class Small(nn.Module):
    """Two layers that take image_folder of any size."""

    def __init__(self, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 12, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()).mean((2, 3))


class Stubborn(Small):
    """One that cannot be exported: what it computes depends on the pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return self.odd(super().forward(x))

    class Odd(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            if z.sum() > 0:
                return z
            return -z

    def __init__(self) -> None:
        super().__init__()
        self.odd = Stubborn.Odd()


class OneSize(nn.Module):
    """One that takes its own size only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3 * 16 * 16, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of these tests' own: each network is exported once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def small_networks(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks that are exported in a second, by name."""
    monkeypatch.setenv(engines.CACHE_VARIABLE, str(cache))
    for name, network in (
        ("small", Small),
        ("stubborn", Stubborn),
        ("one_size", OneSize),
    ):
        monkeypatch.setitem(
            BACKBONES, name, lambda *_, network=network: (network(), 12, SHAPE)
        )


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    """Another number of threads than usual within the block."""
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def images(count: int = 5, side: int = 16) -> Tensor:
    draw = torch.Generator().manual_seed(count * side)
    return torch.randint(
        0, 256, (count, 3, side, side), generator=draw, dtype=torch.uint8
    )


def assert_agree(backbone: Backbone, side: int = 16, count: int = 5) -> None:
    expected = backbone.embed(images(count, side))
    assert (
        backbone(images(count, side)) - expected
    ).abs().max() <= 1e-5 * expected.abs().max()


class TestEmbeddings:
    def test_agree_for_any_number_and_size_of_images(self):
        backbone = build_backbone("small")
        assert backbone.engine() == "onnxruntime"
        for side in (16, 9, 40):
            for count in (1, 2, 7):
                assert_agree(backbone, side, count)
        assert backbone(images(0)).shape == (0, 12)

    @pytest.mark.parametrize(
        ("threads", "count", "piece", "large"),
        [
            (2, 7, 3, 2**18),
            (3, 2, 8, 2**18),
            (3, 5, 0.7, 16 * 16 - 1),
            (1, 5, 2, 2**18),
        ],
    )
    def test_do_not_depend_on_how_the_images_are_divided(
        self, monkeypatch, threads, count, piece, large
    ):
        """Pieces for each thread, fewer image_folder than threads, image_folder so large that
        threads share them, one thread.
        """
        backbone = build_backbone("small", engine="onnxruntime")
        one_by_one = torch.cat([backbone(image[None]) for image in images(count)])
        monkeypatch.setattr(engines, "PIXELS_PER_PIECE", int(piece * 16 * 16))
        monkeypatch.setattr(engines, "PIXELS_FOR_SHARED_WORK", large)
        with threads_of_torch(threads):
            assert torch.equal(backbone(images(count)), one_by_one)

    def test_of_a_real_network_are_the_same_bits_with_any_number_of_threads_and_images(
        self, monkeypatch
    ):
        monkeypatch.undo()  # exported once for all runs of the tests
        backbone = build_backbone("embedded:efficientnet_lite0", engine="onnxruntime")
        results = []
        for threads in (1, 2, 5):
            with threads_of_torch(threads):
                results += [
                    backbone(images(6, 64)),
                    torch.cat([backbone(image[None]) for image in images(6, 64)]),
                ]
        assert all(torch.equal(z, results[0]) for z in results)

    @given(
        count=st.integers(1, 300), most=st.integers(1, 70), threads=st.integers(2, 40)
    )
    def test_pieces_hold_every_image_once_and_become_smaller(
        self, count, most, threads
    ):
        sizes = np.diff([0, *piece_ends(count, most, threads), count]).tolist()
        assert sum(sizes) == count
        assert all(0 < later <= earlier for earlier, later in itertools.pairwise(sizes))
        assert sizes[0] <= most
        assert sizes[-1] == 1 or len(sizes) == 1

    def test_a_network_of_one_size_keeps_its_sentence_about_other_sizes(self):
        backbone = build_backbone("one_size", engine="onnxruntime")
        assert_agree(backbone)
        with pytest.raises(CifnetError, match="cannot embed images of 20x20 pixels"):
            backbone(images(1, 20))


class TestChoice:
    def test_torch_on_a_gpu_in_half_precision_and_where_it_was_asked_for(self):
        backbone = build_backbone("small")
        assert (
            backbone.engine("cuda") == backbone.engine("cpu", "bf16-mixed") == "torch"
        )
        with torch.autocast("cpu", torch.bfloat16):
            halved = backbone(images())
            assert torch.equal(halved, backbone.embed(images()))
        assert not torch.equal(backbone(images()), halved)
        by_name = build_backbone("small", engine="torch")
        assert by_name.engine() == "torch"
        assert torch.equal(by_name(images()), by_name.embed(images()))

    def test_onnxruntime_by_name_refuses_a_gpu_and_half_precision(self):
        backbone = build_backbone("small", engine="onnxruntime")
        with pytest.raises(UsageError, match="32-true on a device of type cuda"):
            backbone.engine("cuda")
        with pytest.raises(UsageError, match="float32 on the CPU only, and 16-mixed"):
            backbone.engine("cpu", "16-mixed")

    def test_pixels_need_no_engine(self, caplog):
        caplog.set_level(logging.INFO)
        assert build_backbone("pixels:4").engine() == "torch"
        assert not caplog.records

    @pytest.mark.system
    def test_a_missing_package(self, monkeypatch, caplog):
        monkeypatch.setattr(engines, "PACKAGES", ("no_such_package",))
        assert build_backbone("small").engine() == "torch"
        assert "no_such_package" in caplog.text
        with pytest.raises(UsageError, match="no_such_package"):
            build_backbone("small", engine="onnxruntime").engine()

    def test_a_network_that_cannot_be_exported(self, caplog):
        backbone = build_backbone("stubborn")
        assert torch.equal(backbone(images()), backbone.embed(images()))
        assert "stubborn" in caplog.text
        with pytest.raises(CifnetError, match=r"stubborn .*engine torch"):
            build_backbone("stubborn", engine="onnxruntime").engine()


# ---------------------------------------------------------------------- runs and models


SMALL = [
    "--model.backbone",
    "small",
    "--model.head",
    "RidgeHead",
    "--data.image_size",
    "16",
]
TORCH = ["--model.engine", "torch"]
RUNTIME = ["--model.engine", "onnxruntime"]


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    make_images(tmp_path / "images", ["ant", "bee", "cow", "dog"])
    make_images(tmp_path / "new", ["elk"])
    return tmp_path / "images"


def options(image_folder: Path) -> list[str]:
    return [*SMALL, "--data.source", "folder", "--data.root", str(image_folder)]


def test_a_run_says_what_embedded_and_the_engines_agree(image_folder, tmp_path, capsys):
    runs = [
        learned(tmp_path / name, *options(image_folder), *engine)
        for name, engine in (("a", TORCH), ("b", RUNTIME))
    ]
    assert "engine onnxruntime" in capsys.readouterr().err
    assert [
        json.loads((run / "summary.json").read_text())["engine"] for run in runs
    ] == [
        "torch",
        "onnxruntime",
    ]
    models = [cifnet_pl.load(run, "cpu") for run in runs]
    assert [model.engines for model in models] == [["torch"], ["onnxruntime"]]
    one, other = (model.tensors() for model in models)
    for key in one:
        gap = torch.linalg.vector_norm(one[key].double() - other[key].double())
        assert gap <= 1e-5 * torch.linalg.vector_norm(one[key].double()), key
    rows = [
        (run / "tasks.csv").read_text().splitlines()[-1].split(",")[2] for run in runs
    ]
    assert rows[0] == rows[1]  # A_K


def test_resuming_is_bit_identical_and_another_engine_may_go_on(image_folder, tmp_path):
    whole = learned(tmp_path / "whole", *options(image_folder), *RUNTIME)
    parts = tmp_path / "parts"
    learned(parts, *options(image_folder), *RUNTIME, "--data.max_tasks", "1")
    resumed = learned(
        parts,
        *options(image_folder),
        *RUNTIME,
        "--data.max_tasks",
        "2",
        "--ckpt_path",
        "last",
    )
    assert_same_model(whole, resumed)
    mixed = tmp_path / "mixed"
    learned(mixed, *options(image_folder), *TORCH, "--data.max_tasks", "1")
    learned(
        mixed,
        *options(image_folder),
        *RUNTIME,
        "--data.max_tasks",
        "2",
        "--ckpt_path",
        "last",
    )
    model = cifnet_pl.load(mixed / "default", "cpu")
    assert model.engines == ["torch", "onnxruntime"]
    sums = [
        cifnet_pl.load(run, "cpu").tensors()["head.sums.packed_gram"]
        for run in (whole, mixed / "default")
    ]
    assert torch.linalg.vector_norm(
        sums[0] - sums[1]
    ) <= 1e-5 * torch.linalg.vector_norm(sums[0])


def test_the_cache_keeps_engines_apart(image_folder, tmp_path):
    arguments = [
        *options(image_folder),
        "--data.cache",
        "true",
        "--data.cache_folder",
        str(tmp_path / "embeddings"),
    ]
    for name, engine in (("a", TORCH), ("b", RUNTIME), ("c", TORCH)):
        learned(tmp_path / name, *arguments, *engine)
    assert len(list((tmp_path / "embeddings").iterdir())) == 2
    assert_same_model(
        *(tmp_path / name / "default" / "version_0" for name in ("a", "c"))
    )


def test_the_life_of_a_model(image_folder, tmp_path, capsys):
    run = learned(
        tmp_path / "run", *options(image_folder), *TORCH, "--data.val_fraction", "0.2"
    )
    extend = [
        "extend",
        "--model",
        str(run),
        "--images",
        str(tmp_path / "new"),
        "--output",
    ]
    assert main([*extend, str(tmp_path / "extended"), "--engine", "onnxruntime"]) == 0
    assert config_of(tmp_path / "extended")["engines"] == ["torch", "onnxruntime"]
    for engine in ("torch", "onnxruntime"):
        arguments = [
            "--images",
            str(image_folder),
            "--output",
            str(tmp_path / f"{engine}.csv"),
            "--engine",
            engine,
        ]
        assert (
            main(["classify", "--model", str(tmp_path / "extended"), *arguments]) == 0
        )
    answers = [
        (tmp_path / f"{name}.csv").read_text().splitlines()
        for name in ("torch", "onnxruntime")
    ]
    assert [line.split(",")[:2] for line in answers[0]] == [
        line.split(",")[:2] for line in answers[1]
    ]
    runtime = learned(tmp_path / "runtime", *options(image_folder), *RUNTIME)
    forget = ["--class", "bee", "--images", str(image_folder / "bee"), "--output"]
    forget = ["forget", "--model", str(runtime), *forget]
    assert_ends(
        main([*forget, str(tmp_path / "auto")]),
        0,
        "bee",
        capsys,
    )
    assert main([*forget, str(tmp_path / "other"), "--engine", "torch"]) == 0
    assert "not to 1e-8" in capsys.readouterr().out
    without = make_images(tmp_path / "without", ["ant", "cow", "dog"])
    never = learned(
        tmp_path / "never", *options(without), *RUNTIME, "--data.classes_per_task", "3"
    )
    expected = cifnet_pl.load(never, "cpu").tensors()["head.sums.packed_gram"]
    for name, bound in (("auto", 1e-8), ("other", 1e-5)):
        products = cifnet_pl.load(tmp_path / name, "cpu").tensors()[
            "head.sums.packed_gram"
        ]
        gap = torch.linalg.vector_norm(products - expected) / torch.linalg.vector_norm(
            expected
        )
        assert gap <= bound, name
        assert name == "auto" or gap > 1e-12


def test_a_model_is_pickled_before_and_after_a_prediction(image_folder, tmp_path):
    run = learned(tmp_path / "run", *options(image_folder), *RUNTIME)
    model = cifnet_pl.load(run, "cpu")
    images = sorted(image_folder.rglob("*.png"))[:3]
    before = pickle.loads(pickle.dumps(model))
    expected = list(model.classify(images))
    after = pickle.loads(pickle.dumps(model))
    for copy in (before, after):
        assert list(copy.classify(images)) == expected
        assert copy.engine == "onnxruntime"
