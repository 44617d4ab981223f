"""``python -m benchmarks.engine_accuracy ROOT``: final accuracy by what embeds: torch, ONNX Runtime, and int8.

The rows of the README's table, in the class order that it has (Tiny-ImageNet as given, ten classes a task), with
embeddings of each engine. int8 is ONNX Runtime's static quantisation of the exported graph, calibrated on training
photos; nothing in the product uses it, see docs/engines.md. ``--speed`` compares int8 and bf16 with float32 instead, in
turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.embeddings import BACKBONE, BATCH, Photos, accuracy, learn, study_parser
from benchmarks.measure import ratio, side_by_side
from cifnet_pl.backbones import build_backbone
from cifnet_pl.backbones.engines import FLOAT32, autocast
from cifnet_pl.backbones.onnx_runtime import exported
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.data.loading import ImageLoader
from cifnet_pl.data.sets import ImageSet, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.heads import CIFNetHead, Head, RidgeHead
from cifnet_pl.utilities.memory import keep_freed_memory

ENGINES = ("torch", "onnxruntime", "int8")
CALIBRATION = 512
"""Training photos that the ranges of activations are taken from, evenly spaced over all."""
PER_TASK = 10
Embed = Callable[[Tensor], Tensor]
Make = Callable[[int], Head]
ROWS: dict[str, tuple[Make, dict[str, Any] | None]] = {
    "`RidgeHead`": (RidgeHead, None),
    "`CIFNetHead`, λ = 1, buffer 2000": (partial(CIFNetHead, ridge=1.0), {}),
    "`CIFNetHead`, λ = 0.01": (partial(CIFNetHead, ridge=0.01), {}),
    "… λ = 1, without oversampling": (partial(CIFNetHead, ridge=1.0), {"oversample": False}),
    "… λ = 1, old neurons locked": (partial(CIFNetHead, ridge=1.0, update_past=False), {}),
    "… λ = 1, without the buffer": (partial(CIFNetHead, ridge=1.0), None),
}
"""Name → (head, options of the buffer or None for no buffer)."""


def batches(images: ImageSet, names: list[str], side: int, rows: np.ndarray) -> Iterator[Tensor]:
    """Images (n, 3, side, side) uint8."""
    loader = ImageLoader(images, side, 1.0, 1, BATCH)
    for batch in loader.set_batches(np.array_split(rows, range(BATCH, len(rows), BATCH))):
        yield batch.image
    loader.close()


def pixels(images: Tensor) -> np.ndarray:
    """What a graph takes: (n, side, side, 3)."""
    return images.permute(0, 2, 3, 1).contiguous().numpy()


def session(path: Path) -> Any:
    """A graph with as many threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def quantised(graph: Path, calibration: list[np.ndarray], target: Path) -> Path:
    """A graph whose convolutions and products compute with 8 bits, by the ranges of activations of given images."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(calibration)

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self._left, None)
            return None if batch is None else {"images": batch}

    prepared = target.with_suffix(".prepared.onnx")
    quant_pre_process(graph, prepared, skip_symbolic_shape=True)
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(prepared, target, Reader(), quant_format=QuantFormat.QDQ, per_channel=True, **types)
    return target


def graphs(root: Path, side: int, folder: Path) -> tuple[Path, Path]:
    """The float32 graph and the int8 graph that the training photos of ``root`` calibrated."""
    source, plain = build_source("folder", SourceOptions(root)), folder / "float32.onnx"
    plain.write_bytes(exported(build_backbone(BACKBONE)._embedder()))
    rows = np.linspace(0, len(source.train) - 1, CALIBRATION).astype(np.int64)
    calibration = [pixels(images) for images in batches(source.train, source.class_names, side, rows)]
    return plain, quantised(plain, calibration, folder / "int8.onnx")


def embedders(root: Path, side: int, folder: Path) -> dict[str, Embed]:
    """Engine → images → embeddings."""
    _, small = graphs(root, side, folder)
    by_name: dict[str, Embed] = {name: build_backbone(BACKBONE, engine=name) for name in ENGINES[:2]}
    running = session(small)
    by_name["int8"] = lambda images: torch.from_numpy(running.run(None, {"images": pixels(images)})[0])
    return by_name


def embedded(root: Path, side: int, embed: Embed) -> Photos:
    """All photos of a folder."""
    source, parts = build_source("folder", SourceOptions(root)), list[Tensor]()
    for images in (source.train, source.val):
        rows = np.arange(len(images))
        parts.append(torch.cat([embed(batch) for batch in batches(images, source.class_names, side, rows)]))
        parts.append(torch.from_numpy(images.labels))
    return Photos(*parts)


def final_accuracy(make: Make, buffered: dict[str, Any] | None, photos: Photos) -> float:
    """A_K with classes in the order given."""
    head = make(photos.z.shape[1])
    buffer = None if buffered is None else CalibrationBuffer(2000, **buffered)
    for start in range(0, photos.classes, PER_TASK):
        learn(head, photos, list(range(start, min(start + PER_TASK, photos.classes))), buffer)
    return accuracy(head, photos)


def compare_accuracy(root: Path, side: int, engines: tuple[str, ...]) -> None:
    """Print A_K of every row by engine."""
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        known = embedders(root, side, Path(folder))
        by_name = {}
        for engine in engines:
            by_name[engine] = embedded(root, side, known[engine])
            print(f"{engine}: embedded", flush=True)
    first = by_name[engines[0]]
    for engine, photos in by_name.items():
        off = (photos.val_z - first.val_z).abs().max() / first.val_z.abs().max()
        print(f"{engine}: embeddings differ from {engines[0]} by {float(off):.1g} of the largest number")
    print(f"| {root.name}, A_K % | " + " | ".join(engines) + " |\n" + "|---" * (len(engines) + 1) + "|")
    for name, (make, buffered) in ROWS.items():
        cells = [f"{final_accuracy(make, buffered, by_name[engine]):.2f}" for engine in engines]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def compare_speed(root: Path, side: int, repeats: int = 10) -> None:
    """Print how long float32 takes beside int8 in ONNX Runtime and beside bf16 in torch, in turns, batches of 64."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = graphs(root, side, Path(folder))
        float32, int8 = (session(path) for path in sizes)
        source, network = build_source("folder", SourceOptions(root)), build_backbone(BACKBONE, engine="torch")
        images = next(batches(source.train, source.class_names, side, np.arange(BATCH)))
        inputs = {"images": pixels(images)}

        def in_torch(precision: str) -> None:
            with autocast("cpu", precision):
                network(images)

        megabytes = " and ".join(f"{path.stat().st_size / 1e6:.1f} MB" for path in reversed(sizes))
        compare_pair(f"int8 at {side} px, ONNX Runtime, graphs of {megabytes}", lambda: int8.run(None, inputs),
                     lambda: float32.run(None, inputs), repeats)  # fmt: skip
        compare_pair(f"bf16 at {side} px, torch", lambda: in_torch("bf16-mixed"), lambda: in_torch(FLOAT32), repeats)


def compare_pair(name: str, reduced: Callable[[], object], float32: Callable[[], object], repeats: int) -> None:
    """Print the time of float32 as multiples of another precision's."""
    ours, rival = side_by_side(reduced, float32, repeats)
    rates = ", ".join(f"{BATCH / np.median(times):.0f}" for times in (ours, rival))
    print(f"float32 / {name}: {ratio(rival, ours)}; images/s {rates}; {torch.get_num_threads()} threads", flush=True)


def main() -> None:
    """Run the study."""
    parser = study_parser(__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    keep_freed_memory()
    if options.speed:
        compare_speed(options.root, options.image_size)
    else:
        compare_accuracy(options.root, options.image_size, tuple(options.engines))


if __name__ == "__main__":
    main()
