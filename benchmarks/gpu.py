"""(b) and (e) on a CUDA GPU: ResNet-18 at 224 px in bf16, 16,000 JPEGs, in about four minutes.

Skipped, saying so, where there is no GPU.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torchvision.models import resnet18

from benchmarks import fit_overhead
from benchmarks.measure import Row
from cifnet_pl.images.reader import decoding_cores

SETUP = fit_overhead.Setup(
    40,
    400,
    4,
    224,
    256,
    decoding_cores(),
    sys.maxsize,
    1,
    "ResNet-18, bf16-mixed",
    (),
    max,
)


def rows(setup: fit_overhead.Setup = SETUP) -> list[Row]:
    """The same rows as on the CPU; what decoding and network allow together is the slower of the
    two.
    """
    if not torch.cuda.is_available():
        return [
            Row(
                "(j) the same on a GPU",
                "skipped",
                "no CUDA GPU here",
                "",
                "",
                "skipped: torch sees no CUDA GPU",
            )
        ]
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        torch.save(resnet18().state_dict(), Path(folder, "resnet18.pth"))
        arguments = [
            "--model.backbone",
            f"file:{folder}/resnet18.pth",
            "--model.architecture",
            "resnet18",
        ]
        arguments += [
            "--trainer.accelerator",
            "gpu",
            "--trainer.devices",
            "1",
            "--trainer.precision",
            "bf16-mixed",
        ]
        about = f"{setup.about} on one {torch.cuda.get_device_name()}"
        measured = fit_overhead.rows(
            replace(setup, about=about, network=tuple(arguments))
        )
        return [replace(row, name=f"(j) GPU: {row.name}") for row in measured]
