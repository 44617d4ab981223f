"""Run folders in the exact format of a run, with numbers chosen by the test instead of measured."""

import numpy as np
import pandas as pd
import yaml

from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import HEADS
from cifnet_pl.learning.run_record import RunRecord, TaskRow
from cifnet_pl.model.metrics import average_accuracy, forgetting
from cifnet_pl.report.results import read_results
from cifnet_pl.utilities.files import write_json, write_text
from cifnet_pl.utilities.plugins import defaults_of

FEATURES = 512
SOURCE = "cpu estimated (cpu_load), ram estimated"
BUFFER = defaults_of(CalibrationBuffer)


def write_run(
    folder,
    *,
    head="CIFNetHead",
    head_options=None,
    buffer=BUFFER,
    data=None,
    seed=1,
    final=59.6,
    first=90.0,
    tasks=10,
    classes=10,
    minutes=1.5,
    kwh=0.06,
    about=None,
    model=None,
    activations=False,
    backbone="file:resnet18.pth",
):
    """Write the files of one whole run that reports read."""
    options = defaults_of(HEADS[head]) | (head_options or {})
    used = None
    if buffer is not None and HEADS[head].uses_buffer:
        used = BUFFER | buffer
    width = options.get("width", FEATURES + 1)
    weights = tasks * classes * width
    components = {"moments": weights, "weights": weights, "buffer": 0}
    if head in ("CIFNetHead", "RidgeHead", "ACILHead"):
        grams = tasks if head == "CIFNetHead" else 1
        components["factors"] = grams * width * (width + 1) // 2
    if used is not None:
        components["buffer"] = used["capacity"] * FEATURES
    record = RunRecord()
    for k in range(tasks):
        share = k / max(1, tasks - 1)
        accuracy = first + (final - first) * share**0.7
        record.matrix.append([accuracy] * (k + 1))
        row = TaskRow(
            task=k + 1,
            classes_seen=(k + 1) * classes,
            A_k=accuracy,
            average=average_accuracy([*record.trajectory, accuracy]),
            forgetting=forgetting(record.matrix),
            ece=30.0,
            train_seconds=60 * minutes / tasks,
            energy_kwh=None if kwh is None else kwh / tasks,
            energy_source=None if kwh is None else SOURCE,
        )
        record.rows.append(row)
    arguments = {"backbone": backbone}
    if backbone.startswith("file:"):
        arguments["architecture"] = "resnet18"
    given = {"source": "cifar100", "root": "data", "class_order": seed}
    given |= {"classes_per_task": classes, "image_size": 224, "batch_size": 64}
    config = {
        "trainer": {"accelerator": "auto", "precision": None},
        "model": model or {"init_args": arguments},
        "data": {**given, **(data or {})},
    }
    write_text(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))
    record.write_tables(folder, tasks=[])
    settings = {"in_features": FEATURES, "seed": seed, **options}
    if "width" in options:
        settings["projection"] = f"seed {seed}"
    summary = record.summary(
        head=head,
        head_settings=settings,
        buffer_settings=used,
        backbone=backbone,
        network_params=11_170_000,
        seed=seed,
        state_components=components,
        state_bytes_per_element={n: 4 if n == "buffer" else 8 for n in components},
    )
    summary["machine"] = "x86_64"
    write_json(folder / "summary.json", summary | (about or {}))
    if activations:
        means = np.full((tasks, tasks), 0.15)
        means[np.triu_indices(tasks, 1)] = 0.7 if buffer is None else 0.1
        np.fill_diagonal(means, 0.9)
        pd.DataFrame(means).to_csv(folder / "activations.csv")
    return folder


def results_of(folder, *runs, external=None):
    """Write runs with these options, of three tasks each unless they say otherwise."""
    for i, options in enumerate(runs):
        write_run(folder / f"e{i:02}" / "version_0", **{"tasks": 3, **options})
    return read_results([folder], external)
