from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cifnet_pl.__main__ import main
from cifnet_pl.data.sets import Source, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.data.sources.benchmarks import every
from cifnet_pl.utilities.errors import CifnetError, DataError, UsageError


def tree(root: Path, sessions: int = 11, objects: int = 4, frames: int = 20) -> Path:
    """A tree of CORe50's shape, with 4 x 4 pixels whose red value is the session and green the object."""
    for s in range(1, sessions + 1):
        for o in range(1, objects + 1):
            folder = root / "core50_128x128" / f"s{s}" / f"o{o}"
            folder.mkdir(parents=True)
            image = Image.new("RGB", (4, 4), (s, o, 0))
            for f in range(frames):
                image.save(folder / f"C_{s:02}_{o:02}_{f:03}.png")
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(tmp_path_factory.mktemp("core"))


def build(root: Path | None, **options: Any) -> Source:
    return build_source("core50", SourceOptions(root, own=options))


def test_every_tenth_of_all_frames_is_the_papers_number() -> None:
    assert len(every(range(164_866), 10)) == 16_486
    assert every(range(5), 1) == [0, 1, 2, 3, 4]


def test_standard_sessions_are_for_testing(root: Path) -> None:
    source = build(root)
    assert source.class_names == ["o1", "o2", "o3", "o4"]
    assert len(source.train) == 8 * 4 * 2
    assert len(source.val) == 3 * 4 * 2
    assert {name.split("/")[0] for name in source.val.names} == {"s3", "s7", "s10"}
    assert source.val.names[:3] == ["s3/o1/C_03_01_009.png", "s3/o1/C_03_01_019.png", "s3/o2/C_03_02_009.png"]
    for split in (source.train, source.val):
        for index in range(0, len(split), 7):
            red, green, _ = split.photo(index).square(4)[0, 0]
            assert split.names[index].startswith(f"s{red}/o{green}/")
            assert split.labels[index] == green - 1


def test_stride_and_sessions_are_settings(root: Path) -> None:
    source = build(root / "core50_128x128", stride=4, test_sessions=[1])
    assert len(source.train) == 10 * 4 * 5
    assert len(source.val) == 4 * 5
    assert np.bincount(source.train.labels).tolist() == [50] * 4


def test_objects_are_in_numerical_order(tmp_path: Path) -> None:
    source = build(tree(tmp_path, sessions=3, objects=12, frames=1), stride=1, test_sessions=[3])
    assert source.class_names == [f"o{i}" for i in range(1, 13)]


@pytest.mark.parametrize(
    ("own", "part"),
    [
        ({"stride": 0}, "stride is 0, expected 1 or more"),
        ({"test_sessions": []}, "expected a list of session numbers"),
        ({"test_sessions": "3"}, "expected a list of session numbers"),
        ({"test_sessions": [12]}, "expected the test sessions 12"),
        ({"test_sessions": list(range(1, 12))}, "and others for training"),
        ({"strid": 3}, "unknown option of data source core50 'strid': did you mean stride"),
    ],
)
def test_bad_options(root: Path, own: dict[str, Any], part: str) -> None:
    with pytest.raises(CifnetError, match=part.replace("[", r"\[")):
        build(root, **own)


def test_a_missing_set_says_what_to_download_and_where_it_goes(tmp_path: Path) -> None:
    for root in (tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match=r"core50_128x128\.zip from vlomonaco\.github\.io/core50") as error:
            build(root)
        assert "--data.root" in str(error.value)
        assert str(root) in str(error.value)
    with pytest.raises(UsageError, match=r"set --data\.root"):
        build(None)


def test_an_object_without_training_frames(root: Path) -> None:
    with pytest.raises(DataError, match=r"stride 150: class .o1. has no training image"):
        build(root, stride=150)


def test_it_runs_from_the_command_line(root: Path, tmp_path: Path) -> None:
    line = ["fit", "--model.backbone", "pixels:4", "--data.source", "core50", "--data.root", str(root)]
    line += ["--data.options.stride", "5", "--data.options.test_sessions", "[1, 2]", "--data.classes_per_task", "2"]
    line += ["--data.image_size", "4", "--data.num_workers", "0", "--energy.enabled", "false", "--logs", str(tmp_path)]
    assert main(line) == 0
    config = (tmp_path / "default" / "version_0" / "config.yaml").read_text()
    assert "stride: 5" in config
