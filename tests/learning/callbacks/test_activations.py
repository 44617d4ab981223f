import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from cifnet_pl.backbones import build_backbone
from cifnet_pl.data.sets import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.heads import CIFNetHead
from tests.command_line import BUFFER, checkpoint, learned

RECORD = ["--trainer.callbacks+", "cifnet_pl.learning.callbacks.ActivationTable", "--data.max_tasks", "3"]


def table(run: Path) -> np.ndarray:
    with (run / "activations.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["image_task", *(f"neurons_{j + 1}" for j in range(len(rows) - 1))]
    assert [row[0] for row in rows[1:]] == [str(i + 1) for i in range(len(rows) - 1)]
    return np.array([row[1:] for row in rows[1:]], dtype=float)


def test_the_table_is_what_the_stored_head_gives(tmp_path: Path) -> None:
    run = learned(tmp_path, *RECORD, *BUFFER)
    result, state = table(run), checkpoint(run)
    head = CIFNetHead(192)
    head.load_state_dict({k.removeprefix("head."): v for k, v in state["state_dict"].items() if k.startswith("head.")})
    images, backbone = build_source("digits", SourceOptions()).val, build_backbone("pixels:8")
    pixels = np.stack([images.photo(i).square(8) for i in range(len(images))])
    activations = torch.sigmoid(head(backbone(torch.from_numpy(pixels).permute(0, 3, 1, 2)))).numpy()
    # Classes are learned in the order of the source here: two a task, label c in task c // 2.
    expected = [
        [activations[images.labels // 2 == i][:, 2 * j : 2 * j + 2].max(axis=1).mean() for j in range(3)]
        for i in range(3)
    ]
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_calibration_quietens_later_neurons_on_earlier_classes(tmp_path: Path) -> None:
    later = np.triu_indices(3, 1)
    calibrated = table(learned(tmp_path / "a", *RECORD, *BUFFER, "--model.head.update_past", "false"))
    bare = table(learned(tmp_path / "b", *RECORD, "--model.head.update_past", "false"))
    assert calibrated[later].mean() < bare[later].mean() - 0.1
    assert calibrated.diagonal().mean() == pytest.approx(bare.diagonal().mean(), abs=0.15)
