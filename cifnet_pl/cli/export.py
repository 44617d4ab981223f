"""``export``: a finished run as a product, a bundle that goes on learning or an ONNX graph."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Literal

from cifnet_pl.backbones.precision import FLOAT32
from cifnet_pl.model.bundle import refuse_existing
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.loading import load
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.files import exclusive, write_atomic


def export(model: str, output: str, format: Literal["bundle", "onnx"] = "bundle", overwrite: bool = False) -> None:
    """Write a model as a bundle that can be loaded and extended, or as one ONNX graph.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        output: the bundle's folder, or the ONNX file.
        format: bundle (classifies and goes on learning) or onnx (classifies, anywhere).
        overwrite: whether what is at output already may be replaced.

    Raises:
        UsageError: there is something at output already, another process is writing it, or a package is missing.
        CheckpointError: there is no model at ``model``, or it is damaged.
        CifnetError: the disk is full, or the model cannot be expressed as ONNX.
    """
    target = Path(output).expanduser()
    with exclusive(target):
        if format == "onnx":
            _export_onnx(load(model, device="cpu"), target, overwrite)
        else:
            refuse_existing(target, overwrite)
            found = load(model, device="cpu")
            found.save(target, overwrite)
            print(f"{len(found.class_names)} classes in bundle {target}: cifnet_pl.load({str(target)!r})")
            print(f"next: cifnet classify --model {shlex.quote(str(target))} --images PHOTOS --output out.csv")


def _export_onnx(model: Classifier, target: Path, overwrite: bool) -> None:
    from cifnet_pl.model.onnx import onnx_bytes

    if target.is_dir():
        raise UsageError(f"{target} is a folder, expected a file for the ONNX graph, e.g. --output {target}/model.onnx")
    if target.exists() and not overwrite:
        raise UsageError(f"{target} exists already: choose another --output, or add --overwrite true")
    content, check = onnx_bytes(replace(model, precision=FLOAT32))
    write_atomic(target, lambda file: file.write(content))
    print(f"{len(model.class_names)} classes in {target}: images (n, height, width, 3) uint8 RGB → probabilities")
    if model.precision != FLOAT32:
        print(f"the graph computes in float32; the model learned from embeddings in {model.precision}")
    print(
        f"checked on real photos: onnxruntime within {check.torch:.0e} of torch, "
        f"the graph's resize within {check.pillow:.0e} of Pillow's, in probabilities"
    )
