"""Measure the energy of each task with CodeCarbon, offline, by phase and component."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.utilities.errors import unknown_name
from cifnet_pl.utilities.growing_tensors import float64_device
from cifnet_pl.utilities.text import one_line

COMPONENTS = ("cpu", "gpu", "ram", "co2_kg")
"""What a reading holds: kWh of three components, and kg of CO₂ equivalents."""


class EnergyMonitor(Callback):
    """Measure the energy of every task's learning and evaluation, with one tracker per node.

    An error in the tracker is reported once and never ends a run. The energy that an open task has
    taken is part of the checkpoint, and counts if the run goes on inside that task; with several
    nodes, each then adds what the first one took.

    Args:
        enabled: whether to measure at all.
        country_iso_code: three-letter code for the carbon intensity of electricity.
        tracking_mode: machine counts the processor and memory with all other processes, process
            only this run's share. The Trainer's GPUs are counted whole in both modes, other GPUs in
            neither.

    Raises:
        UsageError: CodeCarbon has no carbon intensity for the country.

    Attributes:
        source: where the values come from, such as "cpu estimated (cpu_load), gpu nvml"; None if
            nothing is measured.
    """

    def __init__(
        self,
        enabled: bool = True,
        country_iso_code: str = "USA",
        tracking_mode: Literal["machine", "process"] = "machine",
    ):
        self.enabled = enabled
        if enabled:
            # Only here: CodeCarbon reads the list of countries, which takes a second.
            from codecarbon.input import DataSource

            known = cast(Any, DataSource)().get_global_energy_mix_data()
            if country_iso_code not in known:
                kind = "country (three-letter ISO code)"
                raise unknown_name(kind, country_iso_code, known)
        self.country_iso_code = country_iso_code
        self.tracking_mode = tracking_mode
        self.source: str | None = None
        self._tracker: Any = None
        self._last_total = torch.zeros(len(COMPONENTS), dtype=torch.float64)
        self._task_open = False
        # Of the open task, in earlier runs too, up to the last reading. NaN where not known.
        self._spent = torch.zeros_like(self._last_total)

    # ------------------------------------------------------------------ hooks, in Lightning's order

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start the node's tracker."""
        is_first = trainer.local_rank == 0 and self._tracker is None
        if not self.enabled or stage != "fit" or not is_first:
            return
        with self._guarded():
            logging.getLogger("codecarbon").setLevel(logging.CRITICAL)
            from codecarbon import OfflineEmissionsTracker

            gpus = None
            if trainer.strategy.root_device.type == "cuda":
                gpus = physical_gpus(trainer.device_ids)

            class Tracker(OfflineEmissionsTracker):
                # A file of CodeCarbon in a folder would change what the run's own options say, and
                # runs of two folders are compared.
                _external_conf = property(lambda tracker: {}, lambda *_: None)

            self._tracker = Tracker(
                country_iso_code=self.country_iso_code,
                save_to_file=False,
                allow_multiple_runs=True,
                log_level=logging.CRITICAL,
                tracking_mode=self.tracking_mode,
                gpu_ids=gpus,
            )
            self._tracker.start()
            hardware = self._tracker._hardware
            if gpus is None:
                # Not by an empty ``gpu_ids``, which means all GPUs to CodeCarbon.
                hardware = [part for part in hardware if type(part).__name__ != "GPU"]
                self._tracker._hardware = hardware
            self.source = energy_source(hardware)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Start to measure the learning of a task.

        Where the backbone was prepared for the task before, that energy counts as well.
        """
        since_last = self._since_last()
        if pl_module.position is None:
            self._spent = torch.zeros_like(since_last)
            if pl_module.preparation_seconds:
                self._spent = since_last
        self._task_open = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start to measure the evaluation."""
        self._spent = self._spent + self._since_last()
        self._task_open = False

    def on_validation_end(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Record the energy of the task; with several nodes, the sum over nodes."""
        energy = torch.stack([self._spent, self._since_last()])
        if trainer.state.fn != "fit":
            return
        if self.enabled and trainer.num_nodes > 1:
            # Only one process on each node has a reading.
            place = float64_device(trainer.strategy.root_device)
            own = energy.nan_to_num().to(place)
            energy = cast(Tensor, trainer.strategy.reduce(own, reduce_op="sum")).cpu()
        learning, evaluation = energy
        record = pl_module.record
        row = record.rows[-1]
        row.energy_source = self.source
        if self.source:
            record.energy_counts_other_processes = self.tracking_mode == "machine"
        if not learning.isnan().any():
            row.energy_kwh = float(learning[:3].sum())
            for component, value in zip(COMPONENTS, learning.tolist(), strict=True):
                record.energy[component] = record.energy.get(component, 0.0) + value
        if not evaluation.isnan().any():
            row.eval_energy_kwh = float(evaluation[:3].sum())

    def state_dict(self) -> dict[str, Any]:
        """Return the energy of an open task, for the checkpoint; nothing between tasks."""
        if not self._task_open:
            return {}
        self._spent = self._spent + self._since_last()
        return {"spent": self._spent}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the energy of the open task."""
        self._spent = state_dict["spent"]

    def teardown(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        stage: str,
    ) -> None:
        """Stop the tracker."""
        if self._tracker is not None:
            with self._guarded():
                self._tracker.stop()
            self._tracker = None

    # ------------------------------------------------------------------ the tracker

    def _since_last(self) -> Tensor:
        """Return the energy since the last call, by component; NaN if nothing is measured."""
        before = self._last_total
        if self._tracker is not None:
            with self._guarded():
                # Not flush(), which leaves out what took less than 50 ms and gives no components,
                # nor tasks, within which CodeCarbon reads the power once.
                self._tracker._measure_power_and_energy()
                data = self._tracker._prepare_emissions_data()
                kwh = [data.cpu_energy, data.gpu_energy, data.ram_energy]
                total = [*kwh, data.emissions]
                self._last_total = torch.tensor(total, dtype=torch.float64)
        if self._tracker is None:
            return torch.full_like(before, torch.nan)
        return self._last_total - before

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Within the block the tracker works; after an error, warn and measure no more."""
        # Any exception: CodeCarbon probes hardware in many ways.
        try:
            yield
        except Exception as error:
            rank_zero_warn(
                f"energy is not measured: {type(error).__name__}: {one_line(error)}"
            )
            self.source = None
            if self._tracker is not None:
                with suppress(Exception):
                    self._tracker.stop()
            self._tracker = None


def physical_gpus(device_ids: Sequence[int]) -> list[int | str]:
    """Return the driver's numbers or names of a process's GPUs.

    They differ from the process's own numbers if CUDA_VISIBLE_DEVICES is set.

    Args:
        device_ids: indices as the process counts its GPUs.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not visible:
        return list(device_ids)
    names = [name.strip() for name in visible.split(",")]
    chosen = [names[i] for i in device_ids]
    return [int(name) if name.isdigit() else name for name in chosen]


GPU_LIBRARIES = {"NvidiaGPUDevice": "nvml", "AMDGPUDevice": "amdsmi"}
"""Library that reads the energy of each of CodeCarbon's classes of GPUs."""


def energy_source(hardware: Sequence[Any]) -> str:
    """Return where the values come from, such as "cpu estimated (cpu_load), gpu nvml".

    Args:
        hardware: components that CodeCarbon's tracker reads.
    """
    sources = []
    for part in hardware:
        kind = type(part).__name__
        if kind == "GPU":
            for gpu in part.devices.devices:
                name = type(gpu).__name__
                sources.append(f"gpu {GPU_LIBRARIES.get(name, name)}")
        elif kind == "RAM":
            sources.append("ram estimated")
        elif kind == "AppleSiliconChip":
            sources.append(f"{str(part.chip_part).lower()} powermetrics")
        else:
            mode = str(getattr(part, "_mode", "unknown"))
            if mode in ("intel_rapl", "intel_power_gadget"):
                sources.append(f"cpu {mode}")
            else:
                sources.append(f"cpu estimated ({mode})")
    return ", ".join(dict.fromkeys(sources))
