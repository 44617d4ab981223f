"""``export``: write a finished run as a bundle that can go on learning, here or on the hub, or as an ONNX graph."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cifnet_pl.backbones.engines import FLOAT32
from cifnet_pl.model.bundle import refuse_existing
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.store import load
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.files import exclusive, write_atomic, write_bytes, write_text
from cifnet_pl.utilities.text import next_command, number_of, printable

if TYPE_CHECKING:
    from cifnet_pl.model.export import Check


def export(
    model: str,
    output: str | None = None,
    format: Literal["bundle", "onnx", "triton"] = "bundle",
    overwrite: bool = False,
    trust: bool = False,
    push: str | None = None,
    private: bool = False,
    download: bool = False,
) -> None:
    """Write a model as a bundle that can be loaded and extended, or as one ONNX graph, for a server if wanted.

    Args:
        model: a run's folder, a checkpoint file, a bundle, or hf:user/model of the Hugging Face hub.
        output: the bundle's folder, the ONNX file, or the model's folder in a model repository.
        format: bundle (classifies and goes on learning), onnx (classifies, anywhere) or triton (the ONNX graph with
            the configuration for Triton and KServe).
        overwrite: whether what is at output already may be replaced.
        trust: whether heads and networks from outside the package that a model names may be imported, code and all.

        push: hf:user/model, where the bundle is put on the Hugging Face hub, with a card; needs a token that may write.
        private: whether only its owner may see a model that is new on the hub.
        download: whether a model of the hub, and weights of its network, may be fetched.

    Raises:
        UsageError: there is something at output already, another process is writing it, or a package is missing.
        CheckpointError: there is no model at ``model``, or it is damaged.
        CifnetError: the disk is full, or the model cannot be expressed as ONNX.
    """
    if output is None and push is None:
        raise UsageError("give a place for the model: --output, or --push hf:user/model")
    if push is not None:
        _push(load(model, device="cpu", trust=trust, download=download), push, format, private, overwrite)
    if output is None:
        return
    target = Path(output).expanduser()
    with exclusive(target):
        if format == "onnx":
            _export_onnx(load(model, device="cpu", trust=trust, download=download), target, overwrite)
        elif format == "triton":
            _export_triton(load(model, device="cpu", trust=trust, download=download), target, overwrite)
        else:
            refuse_existing(target, overwrite)
            loaded = load(model, device="cpu", trust=trust, download=download)
            loaded.save(target, overwrite)
            print(f"{number_of(len(loaded.class_names), 'class')} in bundle {target}: cifnet_pl.load({str(target)!r})")
            words = ("classify", "--model", str(target), "--images", "PHOTOS", "--output", "out.csv")
            print(next_command(*words, trust=trust))


def _push(model: Classifier, place: str, kind: str, private: bool, overwrite: bool) -> None:
    from cifnet_pl.model.hub import HubName, push

    if kind != "bundle":
        raise UsageError(f"--push puts a bundle on the hub, and --format is {kind}: leave one of them out")
    address = push(model, HubName.of(place), private, overwrite)
    print(f"{len(model.class_names)} classes on the hub, {address}: cifnet_pl.load({place!r}, download=True)")


def _export_onnx(model: Classifier, target: Path, overwrite: bool) -> None:
    from cifnet_pl.model.export import onnx_bytes

    if target.is_dir():
        raise UsageError(f"{target} is a folder, expected a file for the ONNX graph, e.g. --output {target}/model.onnx")
    if target.exists() and not overwrite:
        raise UsageError(f"{target} exists already: choose another --output, or add --overwrite true")
    content, check = onnx_bytes(replace(model, precision=FLOAT32))
    write_atomic(target, lambda file: file.write(content))
    _say(model, target, check)


def _export_triton(model: Classifier, target: Path, overwrite: bool) -> None:
    """Write ``1/model.onnx`` and ``labels.txt``, and ``config.pbtxt`` last."""
    from cifnet_pl.model.export import onnx_bytes, triton_config

    name = target.resolve().name
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise UsageError(
            f"--output ends in {printable(name)!r}: a server needs a name of letters, digits, '_', '-', '.'"
        )
    if target.is_file():
        raise UsageError(f"{target} is a file, expected a folder for the model: choose another --output")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise UsageError(f"{target} exists already: choose another --output, or add --overwrite true")
    if not model.backbone.takes_images:
        raise UsageError("this model learned embeddings that were computed elsewhere: a server's entry takes photos")
    content, check = onnx_bytes(replace(model, precision=FLOAT32))
    config = triton_config(name, len(model.class_names), content)
    write_bytes(target / "1" / "model.onnx", content)
    write_text(target / "labels.txt", "".join(f"{one}\n" for one in model.class_names))
    write_text(target / "config.pbtxt", config)
    _say(model, target, check)
    print(_next_for_server(target))


def _next_for_server(target: Path) -> str:
    """Return the command that serves the folder above a model, or what to do first where that holds other things."""
    above = target.resolve().parent
    others = [e.name for e in above.iterdir() if not e.name.startswith(".") and not (e / "config.pbtxt").is_file()]
    if not others:
        return f"next: tritonserver --model-repository {shlex.quote(str(above))}"
    return (
        f"next: a server takes every folder beside {target.name} for a model, such as {printable(min(others))}: move "
        f"{target.name} into a folder of its own, MODELS, and run tritonserver --model-repository MODELS"
    )


def _say(model: Classifier, target: Path, check: Check) -> None:
    outputs = "probabilities" if check.novelty is None else "probabilities and novelty"
    photos = "images (n, height, width, 3) uint8 RGB"
    checked_on = photos if check.pillow is not None else f"embeddings (n, {model.head.in_features}) float32"
    print(f"{number_of(len(model.class_names), 'class')} in {target}: {checked_on} → {outputs}")
    if check.too_wide is not None:
        print(f"the graph does not tell novelty: its matrix of {check.too_wide} features would be most of the file")
    if model.precision != FLOAT32:
        print(f"the graph computes in float32; the model learned from embeddings in {model.precision}")
    if check.pillow is None:
        print(f"checked on random embeddings: onnxruntime within {check.torch:.0e} of torch, in probabilities")
        return
    print(
        f"checked on real photos: onnxruntime within {check.torch:.0e} of torch, "
        f"the graph's resize within {check.pillow:.0e} of Pillow's, in probabilities"
    )
