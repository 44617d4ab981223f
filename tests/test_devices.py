"""Everything runs on another device than the CPU as it does there: on a simulated one, where there
is no GPU.
"""

from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
import torch

import cifnet_pl
from cifnet_pl import CalibrationBuffer, CIFNetDataModule, CIFNetModule
from cifnet_pl.__main__ import main
from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import STRATEGIES
from cifnet_pl.model.classifier import Classifier
from tests.command_line import (
    BUFFER,
    DATA,
    FAST,
    fit,
    learned,
    make_images,
    measurements,
    summary_of,
)
from tests.simulated_device import WAITS, device_without_float64, gpu

THERE = ["--trainer.accelerator", "gpu", "--trainer.devices", "1"]
LAST = ["--ckpt_path", "last"]
IS_REAL = torch.cuda.is_available()
simulation_only = pytest.mark.skipif(IS_REAL, reason="a real GPU is used")


@pytest.fixture
def device() -> Iterator[torch.device]:
    with gpu() as there:
        yield there


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_buffer(strategy, device):
    draw = torch.Generator().manual_seed(0)
    here = CalibrationBuffer(7, strategy=strategy)
    there = CalibrationBuffer(7, strategy=strategy).to(device)
    for k in range(3):
        z = torch.randn(20, 4, generator=draw)
        y = torch.tensor([2 * k, 2 * k + 1]).repeat(10)
        keys = torch.arange(20 * k, 20 * k + 20)
        for buffer in (here, there):
            where = buffer.y.device
            buffer.add(z.to(where), y.to(where), keys.to(where))
            buffer.commit()
    for mine, yours in zip(here.items(), there.items(), strict=True):
        assert yours.device == device
        assert torch.equal(mine, yours.cpu())


def test_a_backbone(device):
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    backbone = build_backbone("embedded:efficientnet_lite0+layers+mirror")
    here = backbone.embed(images)
    there = backbone.to(device)(images.to(device))
    assert there.device == device
    # A GPU gets a padded batch, for which other kernels may be chosen.
    rounding = 2e-6 * here.abs().max().item()
    assert torch.allclose(there.cpu(), here, rtol=1e-4, atol=rounding)


def test_what_a_network_is_given_on_a_gpu(device, monkeypatch):
    """Batches of few sizes, and convolutions without TF32."""
    backbone = build_backbone("embedded:efficientnet_lite0").to(device)
    calls = []

    def forward(images):
        calls.append((len(images), torch.backends.cudnn.allow_tf32))
        return torch.ones(len(images), backbone.features, device=device)

    monkeypatch.setattr(backbone.network, "forward", forward)
    before = torch.backends.cudnn.allow_tf32
    for count, side in ((1, 224), (3, 224), (64, 224), (65, 224), (9, 32), (300, 32)):
        images = torch.zeros(count, 3, side, side, dtype=torch.uint8, device=device)
        assert len(backbone(images)) == count
    sizes = [1, 32, 64, 128, 256, 512]
    assert calls == [(size, False) for size in sizes]
    assert torch.backends.cudnn.allow_tf32 == before


both = pytest.mark.parametrize(
    "there", [gpu, pytest.param(device_without_float64, marks=simulation_only)]
)
RUN = "--model.calibrate true --data.num_workers 1 --data.batch_size 64"
RUN += " --trainer.callbacks+=cifnet_pl.learning.callbacks.ActivationTable"
RUN += " --data.max_tasks 2 --data.cache true --data.cache_folder"


@pytest.fixture(scope="module")
def run_here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    return learned(folder, *BUFFER, *RUN.split(), str(folder))


@both
def test_a_run_and_its_resumption(there, run_here, tmp_path):
    """With everything that a run does: buffer, calibration, metrics, activations, cache, tables,
    predictions.
    """
    options = [*BUFFER, *RUN.split(), str(tmp_path), *THERE, *LAST]
    with there():
        assert fit(tmp_path, *options, "--data.max_tasks", "1") == 0
        assert fit(tmp_path, *options) == 0
        assert main(["predict", *FAST, *options, "--logs", str(tmp_path)]) == 0
    run = tmp_path / "default" / "version_0"
    assert (run / "activations.csv").is_file()
    name = summary_of(run)["device"]
    assert name == "a simulated GPU" or IS_REAL
    rounded = []
    for each in (run_here, run):
        cells = [cell for row in measurements(each)[1:] for cell in row]
        rounded.append([round(float(cell or -1), 6) for cell in cells])
    assert rounded[0] == rounded[1]
    assert len((run / "predictions.csv").read_text().splitlines()) > 100
    assert_close(cifnet_pl.load(run_here, "cpu"), cifnet_pl.load(run, "cpu"))


@simulation_only
def test_trained_methods_refuse_a_device_without_float64(tmp_path, capsys):
    line = "fit --config iterative/icarl --model.backbone random:resnet18 --logs"
    with device_without_float64():
        assert main([*line.split(), str(tmp_path), *DATA, *THERE]) == 2
    assert "needs float64, which cuda has not" in capsys.readouterr().err


@pytest.fixture(scope="module")
def life_here(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    """A folder, and the commands that made what is in it."""
    root = tmp_path_factory.mktemp("life")
    images = make_images(root / "images", ["ant", "bee", "cow"])
    more = make_images(root / "more", ["dog", "elk"])
    options = f"--data.source folder --data.root {images} --model.head RidgeHead"
    calibrated = [*options.split(), *BUFFER, "--model.calibrate", "true"]
    run = learned(root / "logs", *calibrated)
    extend = f"extend --images {more} --model"
    # The images of the last command were learned before.
    lines = [
        f"{extend} {run} --output extended --check {images}",
        f"classify --model extended --images {images} --output classes.csv",
        "forget --model extended --class bee --output forgot",
        f"merge {run} extended --base {run} --output merged",
        f"{extend} extended --output again --more --duplicates keep",
    ]
    commands = [line.split() for line in lines]
    run_in(root / "here", commands)
    return root / "here", commands


def run_in(folder: Path, commands: list[list[str]]) -> None:
    folder.mkdir()
    with chdir(folder):
        assert [main(command) for command in commands] == [0] * len(commands)


@both
def test_the_life_of_a_model(there, life_here, tmp_path):
    """The commands take the first GPU where there is one."""
    here, commands = life_here
    made = tmp_path / "there"
    with there():
        assert cifnet_pl.load(here / "extended").backbone.device.type == "cuda"
        run_in(made, commands)
    table = (made / "classes.csv").read_text()
    assert table == (here / "classes.csv").read_text()
    models = ("extended", "forgot", "merged", "again")
    names = {path.name for path in made.iterdir() if not path.name.startswith(".")}
    assert names == {"classes.csv", *models}
    for name in models:
        assert_close(*(cifnet_pl.load(folder / name, "cpu") for folder in (here, made)))


def assert_close(one: Classifier, other: Classifier) -> None:
    """The same classes, and tensors that are equal up to rounding."""
    assert one.class_names == other.class_names
    assert one.tensors().keys() == other.tensors().keys()
    for key, tensor in one.tensors().items():
        gap = torch.linalg.vector_norm(other.tensors()[key].double() - tensor.double())
        assert gap <= 1e-6 * torch.linalg.vector_norm(tensor.double()), key


# ---------------------------------------------------------------------- the pass over a task

PASS = ["--model.head", "RidgeHead", *BUFFER, "--data.num_workers", "1"]


def waits_of(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[str]:
    """Operations in calls of a method that wait for the device."""
    found: list[str] = []
    real = getattr(owner, name)

    def counted(*args: object, **options: object) -> object:
        before = len(WAITS)
        result = real(*args, **options)
        found.extend(WAITS[before:])
        return result

    monkeypatch.setattr(owner, name, counted)
    return found


@simulation_only
def test_a_pass_has_large_batches_and_no_step_of_it_waits_for_the_device(
    tmp_path, monkeypatch, watch
):
    sizes = watch(CIFNetModule, "training_step", lambda self, batch, _: len(batch.key))
    steps = waits_of(monkeypatch, CIFNetModule, "training_step")
    copies = waits_of(monkeypatch, CIFNetDataModule, "transfer_batch_to_device")
    ends = waits_of(monkeypatch, CIFNetModule, "complete_batches")
    with gpu():
        assert fit(tmp_path, *PASS, *THERE, "--data.max_tasks", "1") == 0
    assert steps == copies == []
    assert max(sizes) == 256
    assert ends


def test_an_embedding_that_is_not_finite_is_named_before_it_is_learned(
    tmp_path, monkeypatch, watch, capsys
):
    calls = watch(Classifier, "embed_unchecked", lambda self, images: len(images))
    counted = Classifier.embed_unchecked

    def embed(self: Classifier, images: torch.Tensor) -> torch.Tensor:
        z = counted(self, images)
        if len(calls) == 3:
            z = z.clone()
            z[5] = float("nan")
        return z

    monkeypatch.setattr(Classifier, "embed_unchecked", embed)
    observed = watch(Classifier, "observe", lambda self, z, *rest: len(z))
    options = ["--data.batch_size", "16", "--data.max_tasks", "1"]
    with gpu():
        assert fit(tmp_path, *PASS, *THERE, *options) == 1
    message = capsys.readouterr().err
    assert "image 441" in message
    assert "NaN" in message
    assert observed == [16, 16]
