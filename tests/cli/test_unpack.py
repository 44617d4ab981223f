"""Writing a data source as class folders."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.command_line import assert_ends, run_cifnet


def unpack(**options: object) -> int:
    return run_cifnet("unpack", **{"source": "digits", **options})


def test_digits_come_back_from_files(tmp_path: Path, capsys):
    target = tmp_path / "d"
    assert unpack(output=target, classes=["8", "9"], size=8) == 0
    images, labels = load_digits(return_X_y=True)
    files = sorted(target.rglob("*.png"))
    assert len(files) == int(np.isin(labels, (8, 9)).sum())
    assert {path.relative_to(target).parts[0] for path in files} == {"train", "val"}
    for path in files:
        row = int(path.stem)
        assert int(path.parent.name) == labels[row]
        pixels = np.asarray(Image.open(path))[:, :, 0]
        assert (pixels == (images[row].reshape(8, 8) * (255 / 16)).round()).all()
    assert f"{len(files)} images of 2 classes" in capsys.readouterr().out


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine").touch()
    for options, reason in (
        ({"classes": "11"}, "unknown class '11'"),
        ({"source": "digit"}, "did you mean digits?"),
        ({"size": 0}, "--size"),
        ({"size": 100000000}, "expected 1 to 2048 pixels"),
        ({"output": tmp_path}, "not an empty folder"),
    ):
        code = unpack(**{"output": tmp_path / "d", **options})
        assert_ends(code, 2, reason, capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
