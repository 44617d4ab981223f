"""``export``: write a model as a bundle, here or on the hub, or as an ONNX graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cifnet_pl.cli.outputs import OutputKind, print_stored, refuse_other, writing
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.files import expanded, write_bytes
from cifnet_pl.utilities.text import number_of, print_text

if TYPE_CHECKING:
    from cifnet_pl.model.classifier import Classifier


def export(
    model: str,
    output: str | None = None,
    format: Literal["bundle", "onnx"] = "bundle",
    overwrite: bool = False,
    trust: bool = False,
    push: str | None = None,
    private: bool = False,
    download: bool = False,
) -> None:
    """Write a model as a bundle that can be loaded and extended, or as one ONNX graph.

    Args:
        model: a run's folder, a checkpoint file, a bundle, or hf:user/model of the Hugging Face
            hub.
        output: the bundle's folder, or the ONNX file.
        format: bundle (classifies and goes on learning) or onnx (classifies, anywhere).
        overwrite: whether what is at output already may be replaced.
        trust: whether custom heads and backbones that a model names may be imported, which runs
            their code.
        push: hf:user/model, to upload the bundle with a card to the Hugging Face hub; needs a
            token with write access.
        private: whether a new model on the hub is private.
        download: whether a model of the hub, and the weights of its backbone, may be fetched.

    Raises:
        UsageError: there is something at output already, another process is writing it, or a
            package is missing.
        CheckpointError: there is no model at ``model``, or it is damaged.
        CifnetError: the disk is full, or the model cannot be expressed as ONNX.
    """
    from cifnet_pl.model.store import load

    if output is None and push is None:
        raise UsageError(
            "give a place for the model: --output, or --push hf:user/model"
        )
    target = expanded(output) if output is not None else None
    kind: OutputKind = "file" if format == "onnx" else "bundle"
    # What is there may be the same: it is compared when it is written.
    with writing(target, True, kind):
        loaded = load(model, device="cpu", trust=trust, download=download)
        if push is not None:
            from cifnet_pl.model import hub

            address = hub.push(loaded, push, private, overwrite)
            classes = number_of(len(loaded.class_names), "class")
            print_text(
                f"{classes} on the hub, {address}: cifnet_pl.load({push!r}, download=True)"
            )
        if target is None:
            return
        if format == "onnx":
            _export_graph(loaded, target, overwrite)
            return
        loaded.save(target, overwrite)
    print_stored(loaded, target, trust)


def _export_graph(model: Classifier, target: Path, overwrite: bool) -> None:
    """Write one ONNX file, and print what it takes and gives."""
    content, check = model.to_onnx()
    if target.is_file() and not overwrite:
        refuse_other(target, target.read_bytes() == content)
    write_bytes(target, content)
    inputs = f"embeddings (n, {model.head.in_features}) float32"
    if model.backbone.takes_images:
        inputs = "images (n, height, width, 3) uint8 RGB"
    outputs = "probabilities"
    if check.novelty is not None:
        outputs = "probabilities and novelty"
    classes = number_of(len(model.class_names), "class")
    print_text(f"{classes} in {target}: {inputs} → {outputs}")
    if model.precision != "32-true":
        print_text(
            f"The graph computes in float32; the model learned embeddings in {model.precision}"
        )
    print_text(f"Largest difference from torch: {check.probability:.1g}")
