"""Measure energy per task with CodeCarbon, offline: learning and evaluation, and CPU, GPU and RAM,
separately.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, Literal, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.utilities.errors import CheckpointError, explained, unknown_name
from cifnet_pl.utilities.text import first_line


@dataclass(frozen=True)
class Energy:
    """Energy in kWh by component, and the emissions in kg of CO₂ equivalents."""

    cpu: float = 0.0
    gpu: float = 0.0
    ram: float = 0.0
    co2_kg: float = 0.0

    @property
    def total(self) -> float:
        """kWh of all components."""
        return self.cpu + self.gpu + self.ram

    def plus(self, other: Energy, sign: int = 1) -> Energy:
        """Return the sum with another one, or with ``sign`` −1 the difference."""
        return Energy(
            *(
                mine + sign * theirs
                for mine, theirs in zip(astuple(self), astuple(other), strict=True)
            )
        )


def check_country(code: str) -> str:
    """Check a country code.

    Args:
        code: three-letter ISO 3166 code.

    Returns:
        The code.

    Raises:
        UsageError: CodeCarbon has no carbon intensity for it.
    """
    from codecarbon.input import DataSource

    known = cast(Any, DataSource)().get_global_energy_mix_data()
    if code not in known:
        raise unknown_name("country (three-letter ISO code)", code, known)
    return code


class EnergyMonitor(Callback):
    """Measures the energy of every task's learning and of its evaluation, with one tracker per
    node.

    An error in the tracker is reported once and never ends a run. What a task under way has taken
    is part of the checkpoint, and counts if the run goes on inside that task; each of several nodes
    then adds what the first one took.

    Args:
        enabled: whether to measure at all.
        country_iso_code: three-letter code for the carbon intensity of electricity.
        tracking_mode: machine counts the processor and memory with all other processes, process
            only this run's share. The Trainer's GPUs are counted whole in both modes, other GPUs in
            neither.
    """

    def __init__(
        self,
        enabled: bool = True,
        country_iso_code: str = "USA",
        tracking_mode: Literal["machine", "process"] = "machine",
    ):
        self.enabled = enabled
        # The list of countries is read by pandas, whose import takes a second and 90 MB.
        if enabled:
            self.country_iso_code = check_country(country_iso_code)
        else:
            self.country_iso_code = country_iso_code
        self.tracking_mode = tracking_mode
        self.source: str | None = None
        self.learning: Energy | None = None
        self.evaluation: Energy | None = None
        self._tracker: Any = None
        self._mark = Energy()
        self._open = False  # whether a task is being learned
        self._spent: Energy | None = (
            Energy()
        )  # of the task under way, up to the last checkpoint; None if not known
        self._before_stop: Energy | None = Energy()  # of the task under way, in earlier runs
        self._warned = False

    # ------------------------------------------------------------------ hooks, in the order
    # Lightning calls them

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start the node's tracker."""
        if self.enabled and stage == "fit" and trainer.local_rank == 0 and self._tracker is None:
            self._start(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start to measure the learning of a task."""
        module = cast(TaskModule, pl_module)
        lap = self._lap()
        preparing = lap if module.preparing else Energy()
        if module.goes_on_inside:
            self._spent = self._before_stop
        else:
            self._spent = preparing
        self._open = True
        self._before_stop = Energy()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start to measure the evaluation."""
        self.learning = self._add_lap()
        self._open = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the energy of the evaluation; with several nodes, the sum over nodes."""
        self.evaluation = self._lap()
        if self.enabled and trainer.num_nodes > 1:
            self.learning = _over_nodes(trainer, self.learning)
            self.evaluation = _over_nodes(trainer, self.evaluation)

    def state_dict(self) -> dict[str, Any]:
        """Return what a task under way has taken, for the checkpoint; nothing between tasks."""
        if not self._open:
            return {}
        spent = self._add_lap()
        return {"spent": None if spent is None else asdict(spent)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what the task under way took before; CheckpointError if it is damaged."""
        with explained(CheckpointError, "the checkpoint is damaged, its energy cannot be read"):
            spent = state_dict["spent"]
            self._before_stop = None if spent is None else Energy(**spent)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop the tracker."""
        if self._tracker is not None:
            self._guard(self._tracker.stop)
            self._tracker = None

    # ------------------------------------------------------------------ the tracker

    def _start(self, trainer: Trainer) -> None:
        def start() -> None:
            logging.getLogger("codecarbon").setLevel(logging.CRITICAL)
            from codecarbon import OfflineEmissionsTracker

            gpus = (
                physical_gpus(trainer.device_ids)
                if trainer.strategy.root_device.type == "cuda"
                else None
            )
            self._tracker = OfflineEmissionsTracker(
                country_iso_code=self.country_iso_code,
                save_to_file=False,
                allow_multiple_runs=True,
                log_level=logging.CRITICAL,
                tracking_mode=self.tracking_mode,
                gpu_ids=gpus,
            )
            self._tracker.start()
            if gpus is None:  # an empty list of GPUs means all of them to CodeCarbon
                self._tracker._hardware = [
                    h for h in self._tracker._hardware if type(h).__name__ != "GPU"
                ]
            self.source = energy_source(self._tracker._hardware)

        self._guard(start)

    def _lap(self) -> Energy | None:
        """Return the energy since the last call; None if nothing is measured."""
        if self._tracker is None:
            return None
        before = self._mark

        def read() -> None:
            self._tracker._measure_power_and_energy()  # flush() leaves out what took less than 50 ms
            data = self._tracker._prepare_emissions_data()
            self._mark = Energy(data.cpu_energy, data.gpu_energy, data.ram_energy, data.emissions)

        self._guard(read)
        if self._tracker is not None:
            return self._mark.plus(before, -1)
        return None

    def _add_lap(self) -> Energy | None:
        """Return the energy of the task under way; None if a part of it was not measured."""
        lap = self._lap()
        self._spent = None if lap is None or self._spent is None else self._spent.plus(lap)
        return self._spent

    def _guard(self, action: Any) -> None:
        # CodeCarbon probes hardware in many ways; an error there must not end the run.
        try:
            action()
        except Exception as error:
            if not self._warned:
                rank_zero_warn(
                    f"energy is not measured: {type(error).__name__}: {first_line(error)}"
                )
            tracker = self._tracker
            self._tracker = None
            self.source = None
            self._warned = True
            if tracker is not None:
                self._guard(tracker.stop)


def physical_gpus(device_ids: Sequence[int]) -> list[int | str]:
    """Return the driver's numbers or names of a process's GPUs, which CUDA_VISIBLE_DEVICES may
    number differently.

    Args:
        device_ids: indices as the process counts its GPUs.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not visible:
        return list(device_ids)
    names = [name.strip() for name in visible.split(",")]
    return [int(names[i]) if names[i].isdigit() else names[i] for i in device_ids]


TRACKERS = {"NvidiaGPUDevice": "nvml", "AMDGPUDevice": "amdsmi"}
"""CodeCarbon's class of a GPU → the library that reads its energy."""


def energy_source(hardware: Sequence[Any]) -> str:
    """Return where the numbers come from, e.g. "cpu estimated (cpu_load), gpu nvml, ram estimated".

    Args:
        hardware: what CodeCarbon's tracker reads.
    """
    parts = []
    for part in hardware:
        kind = type(part).__name__
        if kind == "GPU":
            counted = [
                device for device in part.devices.devices if device.gpu_index in part._get_gpu_ids()
            ]
            libraries = {
                TRACKERS.get(type(device).__name__, type(device).__name__)
                + ("" if getattr(device, "_has_counter", True) else " (power sampled)")
                for device in counted
            }
            parts += [f"gpu {library}" for library in sorted(libraries)]
        elif kind == "RAM":
            parts.append("ram estimated")
        elif kind == "AppleSiliconChip":
            parts.append(f"{str(part.chip_part).lower()} powermetrics")
        else:
            mode = str(getattr(part, "_mode", "unknown"))
            parts.append(
                f"cpu {mode}"
                if mode in ("intel_rapl", "intel_power_gadget")
                else f"cpu estimated ({mode})"
            )
    return ", ".join(parts)


def _over_nodes(trainer: Trainer, energy: Energy | None) -> Energy:
    """Sum over processes; only one process on each node has a reading."""
    values = torch.tensor(astuple(energy or Energy()), dtype=torch.float64)
    total = trainer.strategy.reduce(values.to(trainer.strategy.root_device), reduce_op="sum")
    return Energy(*total.tolist())
