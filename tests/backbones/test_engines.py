"""Engines: which one runs a network, that both agree, and what a run makes of them."""

import json
import os
import pickle
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cifnet_pl
from cifnet_pl.backbones import BACKBONES, Preprocessing, build_backbone, engines
from cifnet_pl.data.embedding_cache import pipeline_folder
from cifnet_pl.heads import RidgeHead
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.errors import CifnetError, UsageError
from tests.command_line import assert_same_model, learned, make_images, run_cifnet
from tests.heads.literal import distance


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
        z = super().forward(x)
        if z.sum() > 0:
            return z
        return -z


def one_size() -> nn.Module:
    """One that takes its own size only."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 12))


def built(network, *_) -> tuple[nn.Module, int, Preprocessing]:
    return network(), 12, Preprocessing(16)


SHARED_CACHE = os.environ[engines.CACHE_VARIABLE]
"""Where a network is exported once for all runs of the tests."""


@pytest.fixture(scope="module", autouse=True)
def small_networks(tmp_path_factory: pytest.TempPathFactory):
    """Networks that are exported in a second, by name, and once for all of these tests."""
    networks = {"small": Small, "stubborn": Stubborn, "one_size": one_size}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(engines.CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        for name, network in networks.items():
            patch.setitem(BACKBONES, name, partial(built, network))
        yield


@pytest.fixture
def usual_threads():
    """As many threads of torch afterwards as before."""
    usual = torch.get_num_threads()
    yield
    torch.set_num_threads(usual)


def images(count: int = 5, side: int = 16) -> Tensor:
    draw = torch.Generator().manual_seed(count * side)
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=draw)
    return pixels.byte()


def assert_agree(backbone, side: int = 16, count: int = 5) -> None:
    expected = backbone.embed(images(count, side))
    gap = (backbone(images(count, side)) - expected).abs().max()
    assert gap <= 1e-5 * expected.abs().max()


def test_engines_agree_for_any_number_and_size_of_images():
    backbone = build_backbone("small")
    assert backbone.engine() == "onnxruntime"
    for side, count in ((16, 1), (9, 2), (40, 7)):
        assert_agree(backbone, side, count)
    assert backbone(images(0)).shape == (0, 12)


@pytest.mark.parametrize(
    ("threads", "count", "piece", "large"),
    [
        (2, 7, 3, 2**18),  # pieces for each thread
        (3, 2, 8, 2**18),  # fewer images than threads
        (3, 5, 0.7, 16 * 16 - 1),  # images so large that threads share them
        (1, 5, 2, 2**18),
    ],
)
@pytest.mark.usefixtures("usual_threads")
def test_embeddings_do_not_depend_on_how_the_images_are_divided(
    monkeypatch, threads, count, piece, large
):
    backbone = build_backbone("small", engine="onnxruntime")
    one_by_one = torch.cat([backbone(image[None]) for image in images(count)])
    monkeypatch.setattr(engines, "PIXELS_PER_PIECE", int(piece * 16 * 16))
    monkeypatch.setattr(engines, "PIXELS_FOR_SHARED_WORK", large)
    torch.set_num_threads(threads)
    assert torch.equal(backbone(images(count)), one_by_one)


@pytest.mark.system
def test_a_real_network_gives_the_same_bits_with_any_number_of_threads_and_images(
    monkeypatch, usual_threads
):
    monkeypatch.setenv(engines.CACHE_VARIABLE, SHARED_CACHE)
    backbone = build_backbone("embedded:efficientnet_lite0", engine="onnxruntime")
    batch = images(6, 64)
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        one_by_one = [backbone(image[None]) for image in batch]
        results += [backbone(batch), torch.cat(one_by_one)]
    assert all(torch.equal(z, results[0]) for z in results)


def test_a_network_of_one_size_keeps_its_sentence_about_other_sizes():
    backbone = build_backbone("one_size", engine="onnxruntime")
    assert_agree(backbone)
    with pytest.raises(CifnetError, match="cannot embed images of 20x20 pixels"):
        backbone(images(1, 20))


# ---------------------------------------------------------------------- which engine


def test_torch_on_a_gpu_in_half_precision_and_where_it_was_asked_for():
    backbone = build_backbone("small")
    assert backbone.engine("cuda") == backbone.engine("cpu", "bf16-mixed") == "torch"
    with torch.autocast("cpu", torch.bfloat16):
        halved = backbone(images())
        assert torch.equal(halved, backbone.embed(images()))
    assert not torch.equal(backbone(images()), halved)
    assert build_backbone("pixels:4", engine="onnxruntime").engine() == "torch"
    by_name = build_backbone("small", engine="torch")
    assert by_name.engine() == "torch"
    assert torch.equal(by_name(images()), by_name.embed(images()))


def test_onnxruntime_by_name_refuses_a_gpu_and_half_precision():
    backbone = build_backbone("small", engine="onnxruntime")
    with pytest.raises(UsageError, match="32-true on a device of type cuda"):
        backbone.engine("cuda")
    with pytest.raises(UsageError, match="float32 on the CPU only, and 16-mixed"):
        backbone.engine("cpu", "16-mixed")


def test_torch_embeds_what_cannot_be_exported(caplog):
    backbone = build_backbone("stubborn")
    assert torch.equal(backbone(images()), backbone.embed(images()))
    assert backbone.engine() == "torch"
    assert "stubborn" in caplog.text
    with pytest.raises(CifnetError, match=r"stubborn.*engine torch"):
        build_backbone("stubborn", engine="onnxruntime").engine()


# ---------------------------------------------------------------------- runs and models

SMALL = "--model.backbone small --model.head RidgeHead --data.image_size 16"
TORCH = ["--model.engine", "torch"]
RUNTIME = ["--model.engine", "onnxruntime"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folders")
    make_images(root / "all", ["ant", "bee", "cow", "dog"])
    make_images(root / "without_bee", ["ant", "cow", "dog"])
    return root


@pytest.fixture(scope="module")
def fit(folders: Path, tmp_path_factory: pytest.TempPathFactory):
    """A function that learns all images, and returns the run."""

    def run(*options: str) -> Path:
        source = ["--data.source", "folder", "--data.root", str(folders / "all")]
        logs = tmp_path_factory.mktemp("logs")
        return learned(logs, *SMALL.split(), *source, *options)

    return run


@pytest.fixture(scope="module")
def runs(fit) -> dict[str, Path]:
    """A run by each engine, with a checkpoint of each task."""
    every_task = ["--checkpoint.every_task", "true"]
    chosen = {"torch": TORCH, "onnxruntime": RUNTIME}
    return {name: fit(*options, *every_task) for name, options in chosen.items()}


def gram(model: Path) -> Tensor:
    return cifnet_pl.load(model, "cpu").tensors()["head.sums.packed_gram"]


def test_a_run_says_what_embedded_and_the_engines_agree(runs):
    accuracies = set()
    tensors = []
    for engine, run in runs.items():
        model = cifnet_pl.load(run, "cpu")
        summary = json.loads((run / "summary.json").read_text())
        assert [summary["engine"]] == model.engines == [engine]
        accuracies.add(summary["A_K"])
        tensors.append(model.tensors())
    assert len(accuracies) == 1
    one, other = tensors
    for key, tensor in one.items():
        same = torch.equal(tensor, other[key])
        assert same or distance(tensor, other[key]) <= 1e-5, key


def test_resuming_is_bit_identical_and_another_engine_may_go_on(fit, runs, capsys):
    whole = runs["onnxruntime"]
    first = Path("checkpoints", "task_1.ckpt")
    resumed = fit(*RUNTIME, "--ckpt_path", str(whole / first))
    mixed = fit(*RUNTIME, "--ckpt_path", str(runs["torch"] / first))
    assert "engine onnxruntime" in capsys.readouterr().err
    assert_same_model(whole, resumed)
    assert cifnet_pl.load(mixed, "cpu").engines == ["torch", "onnxruntime"]
    assert distance(gram(mixed), gram(whole)) <= 1e-5


def test_the_cache_keeps_engines_apart(tmp_path):
    places = set()
    for engine in ("torch", "onnxruntime"):
        backbone = build_backbone("small", engine=engine)
        places.add(pipeline_folder(tmp_path, backbone, 16, 1.0, engines.FLOAT32, "cpu"))
    assert len(places) == 2


def test_another_engine_may_extend_and_classify(runs, folders, tmp_path):
    new = make_images(tmp_path / "new", ["elk"])
    given = {"model": runs["torch"], "images": new, "output": tmp_path / "more"}
    assert run_cifnet("extend", **given, engine="onnxruntime") == 0
    answers = []
    for engine in ("torch", "onnxruntime"):
        model = cifnet_pl.load(tmp_path / "more", "cpu", engine=engine)
        predictions = model.classify(folders / "all")
        answers.append([prediction.classes[0] for prediction in predictions])
        assert model.engines == ["torch", "onnxruntime"]
    assert answers[0] == answers[1]


def test_forgetting_by_another_engine_says_how_exact_it_is(folders, tmp_path, capsys):
    empty = Classifier(build_backbone("small", engine="onnxruntime"), RidgeHead(12))
    whole = cifnet_pl.extend(empty, folders / "all").model
    never = cifnet_pl.extend(empty, folders / "without_bee").model
    whole.save(tmp_path / "whole")
    never.save(tmp_path / "never")
    given = {"model": tmp_path / "whole", "class_": "bee"}
    given["images"] = folders / "all" / "bee"
    expected = gram(tmp_path / "never")
    for engine, least, most in (("auto", -1, 1e-8), ("torch", 1e-12, 1e-5)):
        output = tmp_path / engine
        assert run_cifnet("forget", **given, output=output, engine=engine) == 0
        assert least < distance(gram(output), expected) <= most
    assert "not to 1e-8" in capsys.readouterr().out


def test_a_model_is_pickled_before_and_after_a_prediction(runs, folders):
    model = cifnet_pl.load(runs["onnxruntime"], "cpu")
    files = sorted((folders / "all").rglob("*.png"))[:3]
    before = pickle.loads(pickle.dumps(model))
    expected = list(model.classify(files))
    after = pickle.loads(pickle.dumps(model))
    for copy in (before, after):
        assert list(copy.classify(files)) == expected
        assert copy.engine == "onnxruntime"
