"""One function for runs, checkpoints and bundles; and what ``info`` and ``export`` make of them."""

import shutil
from pathlib import Path

import pytest
import torch

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.backbones import build_backbone
from cifnet_pl.cli.commands import COMMANDS
from cifnet_pl.learning.callbacks.checkpoint import AtomicCheckpointIO
from cifnet_pl.model.store import checkpoint_of, read_bundle
from cifnet_pl.utilities.errors import CheckpointError
from tests.command_line import BUFFER, checkpoint, learned
from tests.models import SIDE
from tests.models import learned as learned_model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned(tmp_path_factory.mktemp("logs"), *BUFFER, "--checkpoint.every_task", "true")


def test_run_checkpoint_and_bundle_are_the_same_model(run: Path, tmp_path: Path):
    assert main(["export", "--model", str(run), "--output", str(tmp_path / "b")]) == 0
    z = torch.rand(20, 192)
    shutil.copy(run / "checkpoints" / "last.ckpt", tmp_path / "alone.ckpt")  # a checkpoint needs nothing beside it
    places = [run, run.parent, run / "checkpoints" / "last.ckpt", tmp_path / "alone.ckpt", tmp_path / "b"]
    models = [cifnet_pl.load(path, device="cpu") for path in places]
    for model in models:
        assert torch.equal(model.head(z), models[0].head(z))
        assert model.describe() == models[0].describe()
    first = models[0]
    assert first.class_names == [str(c) for c in range(10)]
    assert first.tasks == [[str(c), str(c + 1)] for c in range(0, 10, 2)]
    assert [event.accuracy for event in first.history] == [
        row["A_k"] for row in checkpoint(run)["callbacks"]["TaskMetrics"]["rows"]
    ]
    assert (first.image_size, first.crop_ratio, first.held_back) == (8, 1.0, (0.2, 0))
    assert first.buffer is not None
    assert len(first.buffer.y) == 300


def test_a_model_scores_as_its_run_did(run: Path, tmp_path: Path):
    """Through files: the run's held-out digits, classified one by one."""
    root = tmp_path / "digits"
    assert main(["unpack", "--source", "digits", "--output", str(root), "--size", "8"]) == 0
    model = cifnet_pl.load(run)
    files = sorted((root / "val").rglob("*.png"))
    right = sum(p.classes[0] == p.file.parent.name for p in model.classify(files))
    assert 100 * right / len(files) == pytest.approx(model.history[-1].accuracy)


def test_a_bundle_shares_a_backbone_only_if_it_is_its_own(tmp_path: Path):
    learned_model("ridge").save(tmp_path / "b")
    same, other = build_backbone(f"pixels:{SIDE}"), build_backbone("pixels:4")
    assert read_bundle(tmp_path / "b", backbone=same).backbone is same
    assert read_bundle(tmp_path / "b", backbone=other).backbone.describe() == same.describe()


def test_earlier_tasks_and_newest_versions(run: Path, tmp_path: Path):
    assert len(cifnet_pl.load(run / "checkpoints" / "task_2.ckpt").class_names) == 4
    for version, task in ((2, "task_1"), (10, "task_3"), (9, "task_2")):
        folder = tmp_path / "e" / f"version_{version}" / "checkpoints"
        folder.mkdir(parents=True)
        shutil.copy(run / "checkpoints" / f"{task}.ckpt", folder / "last.ckpt")
    (tmp_path / "e" / "version_11").mkdir()  # has not begun
    assert len(cifnet_pl.load(tmp_path / "e").class_names) == 6


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(CheckpointError, match="no model at"):
        cifnet_pl.load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="neither a bundle"):
        checkpoint_of(tmp_path)
    (tmp_path / "file").write_text("hello")
    for command in ("info", "export", "extend", "classify", "forget"):
        rest = {"info": [], "forget": ["--class", "x"]}.get(command, [])
        rest += ["--output", str(tmp_path / "out")] if command != "info" else []
        rest += ["--images", str(tmp_path)] if command in ("extend", "classify") else []
        assert main([command, "--model", str(tmp_path / "file"), *rest]) == 1
        assert "damaged or not a checkpoint" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "configs"])
def test_a_command_alone_says_what_it_needs(command: str, capsys: pytest.CaptureFixture[str]):
    assert main([command]) == 2
    errors = capsys.readouterr().err
    given = {"merge": "models", "report": "runs", "sweep": "files"}.get(command)
    wanted = (
        f"no {given} are given: name them before the options, " if given else "the following arguments are required: "
    )
    assert errors.startswith(f"cifnet: error: {wanted}")
    assert errors.count("\n") == 1
    assert "--" in errors or given


def test_runs_and_models_read_checkpoints_alike(run: Path, tmp_path: Path):
    (tmp_path / "c.ckpt").write_bytes((run / "checkpoints" / "last.ckpt").read_bytes()[:-100])
    for read in (AtomicCheckpointIO().load_checkpoint, cifnet_pl.load):
        with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
            read(tmp_path / "c.ckpt")


def test_info(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["export", "--model", str(run), "--output", str(tmp_path / "b")]) == 0
    capsys.readouterr()
    model = cifnet_pl.load(run)
    for path in (run, tmp_path / "b"):
        assert main(["info", "--model", str(path)]) == 0
        output = capsys.readouterr().out
        assert f"0 ({model.counts['0']}), 1 ({model.counts['1']})" in output
        assert f"{model.history[-1].accuracy:.1f}" in output
        assert "10 classes in 5 tasks, from 1,438 photos" in output
        assert "head CIFNetHead" in output
        assert "backbone pixels:8" in output
        assert "MB" in output
        assert "energy so far not measured" in output
        assert ("written by cifnet_pl" in output) == (path != run)


def test_energy_of_a_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = learned(tmp_path, "--data.max_tasks", "1", "--energy.enabled", "true")
    capsys.readouterr()
    assert main(["info", "--model", str(run)]) == 0
    output = capsys.readouterr().out
    assert "kWh (" in output
    assert "estimated" in output or "intel_rapl" in output


def test_markup_in_names_is_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from tests.models import learned as made

    made("ncm", [["[red]a[/red]", "b[bold]"]]).save(tmp_path / "b")
    assert main(["info", "--model", str(tmp_path / "b")]) == 0
    assert "[red]a[/red] (7)" in capsys.readouterr().out
