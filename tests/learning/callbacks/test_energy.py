"""Energy per task: learning apart from evaluation, each component apart, and never the end of a
run.
"""

import json
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import codecarbon
import pytest
import torch

from cifnet_pl.iterative import FinetuneModule
from cifnet_pl.learning.callbacks.energy import (
    EnergyMonitor,
    energy_source,
    physical_gpus,
)
from tests.command_line import fit
from tests.command_line import rows as rows_of
from tests.killing import Killed, at_call, die

MEASURED = ["--energy.enabled", "true", "--data.max_tasks", "3"]


class Cpu:
    _mode = "intel_rapl"


class NvidiaGPUDevice:
    def __init__(self, index: int, counter: bool = True):
        self.gpu_index = index
        self._has_counter = counter


class AMDGPUDevice(NvidiaGPUDevice):
    pass


class GPU:
    """Two GPUs of the machine, of which those of ``gpu_ids`` are counted."""

    def __init__(self, kinds=(NvidiaGPUDevice, NvidiaGPUDevice), gpu_ids=(0, 1)):
        made = [kind(i) for i, kind in enumerate(kinds)]
        self.devices = SimpleNamespace(devices=made)
        self._get_gpu_ids = lambda: gpu_ids


class RAM:
    pass


class Tracker:
    """Counts a reading as 1 kWh of CPU, 10 of GPU, 100 of RAM and 0.5 kg, since the reading
    before.
    """

    fail_at: tuple[str, int] = ("never", 0)
    calls: Counter[str]
    chosen: dict[str, object]

    def __init__(self, **options):
        self.chosen.update(options)
        self.hit("init")
        self._hardware = [Cpu(), GPU(), RAM()]

    def hit(self, name):
        self.calls[name] += 1
        if self.fail_at == (name, self.calls[name]):
            raise RuntimeError("no sensor\nsecond line")

    def start(self):
        self.hit("start")

    def _measure_power_and_energy(self):
        self.hit("measure")
        self.readings = getattr(self, "readings", 0) + 1

    def _prepare_emissions_data(self):
        names = ("cpu_energy", "gpu_energy", "ram_energy", "emissions")
        one = dict(zip(names, (1.0, 10.0, 100.0, 0.5), strict=True))
        return SimpleNamespace(**{k: self.readings * one[k] for k in names})

    def stop(self):
        self.hit("stop")


@pytest.fixture
def tracker(monkeypatch):
    monkeypatch.setattr(Tracker, "calls", Counter(), raising=False)
    monkeypatch.setattr(Tracker, "chosen", {}, raising=False)
    monkeypatch.setattr(codecarbon, "OfflineEmissionsTracker", Tracker)
    return Tracker


def results(logs: Path, version: int = 0):
    folder = logs / "default" / f"version_{version}"
    summary = json.loads((folder / "summary.json").read_text())
    return rows_of(folder / "tasks.csv"), summary


def test_learning_and_evaluation_are_apart(tracker, tmp_path):
    assert fit(tmp_path, *MEASURED) == 0
    rows, summary = results(tmp_path)
    # One reading at the start of a task, one after learning, one after evaluation.
    assert tracker.calls["measure"] == 3 * 3
    assert [float(row["energy_kwh"]) for row in rows] == [111.0] * 3
    assert [float(row["eval_energy_kwh"]) for row in rows] == [111.0] * 3
    # A run on the processor names no GPU that happens to be in the machine.
    assert {row["energy_source"] for row in rows} == {"cpu intel_rapl, ram estimated"}
    parts = [summary[f"energy_{part}_kwh"] for part in ("cpu", "gpu", "ram")]
    assert parts == [3.0, 30.0, 300.0]
    assert summary["energy_kwh"] == summary["eval_energy_kwh"] == 333.0
    assert summary["co2_kg"] == 1.5
    assert summary["A_K_per_kwh"] == pytest.approx(summary["A_K"] / 333.0)
    assert tracker.calls["stop"] == 1


def test_a_run_that_goes_on_adds_up(tracker, tmp_path):
    assert fit(tmp_path, *MEASURED) == 0
    assert fit(tmp_path, *MEASURED, "--data.max_tasks", "5", "--ckpt_path", "last") == 0
    rows, summary = results(tmp_path)
    assert [float(row["energy_kwh"]) for row in rows] == [111.0] * 5
    assert summary["energy_kwh"] == 555.0
    assert summary["energy_ram_kwh"] == 500.0


def trained(logs: Path, *options: str) -> int:
    """A run of two tasks that is saved inside them; every save is a reading, too."""
    words = "--model cifnet_pl.iterative.FinetuneModule --model.epochs 2"
    words += " --checkpoint.every_minutes 0 --data.batch_size 32 --data.max_tasks 2"
    return fit(logs, *words.split(), *options)


def test_a_run_that_goes_on_inside_a_task_counts_what_it_took_before(
    tracker, tmp_path, monkeypatch
):
    """Killed in the second epoch of its second task: there are 9 steps in an epoch."""
    assert trained(tmp_path / "whole", "--energy.enabled", "true") == 0
    whole, _ = results(tmp_path / "whole")
    with monkeypatch.context() as patched:
        dying = at_call(18 + 10, FinetuneModule.loss, die)
        patched.setattr(FinetuneModule, "loss", dying)
        with pytest.raises(Killed):
            trained(tmp_path, "--energy.enabled", "true")
    path = tmp_path / "default" / "version_0" / "checkpoints" / "last.ckpt"
    stopped = torch.load(path, weights_only=True)
    assert stopped["position"]["step"] == 9
    assert stopped["callbacks"]["EnergyMonitor"]["spent"][0] > 0
    assert trained(tmp_path, "--energy.enabled", "true", "--ckpt_path", "last") == 0
    rows, summary = results(tmp_path)
    energies = [float(row["energy_kwh"]) for row in rows]
    assert energies == [float(row["energy_kwh"]) for row in whole]
    assert summary["energy_kwh"] == sum(energies)


def test_what_was_not_measured_before_a_stop_makes_the_task_unknown(
    tracker, tmp_path, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(FinetuneModule, "loss", at_call(10, FinetuneModule.loss, die))
        with pytest.raises(Killed):
            trained(tmp_path)
    assert trained(tmp_path, "--energy.enabled", "true", "--ckpt_path", "last") == 0
    rows, _ = results(tmp_path)
    assert rows[0]["energy_kwh"] == ""
    assert float(rows[1]["energy_kwh"]) > 0


@pytest.mark.parametrize(
    "where",
    [("init", 1), ("start", 1), ("measure", 1), ("measure", 5), ("stop", 1)],
    ids=str,
)
def test_a_failure_costs_the_reading_and_not_the_run(
    where, tracker, tmp_path, monkeypatch
):
    monkeypatch.setattr(tracker, "fail_at", where)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert fit(tmp_path, *MEASURED) == 0
    sentence = [str(w.message) for w in caught if "energy" in str(w.message)]
    assert sentence == ["energy is not measured: RuntimeError: no sensor second line"]
    rows, summary = results(tmp_path)
    # Tasks before the failure.
    measured = {("measure", 5): 1, ("stop", 1): 3}.get(where, 0)
    energies = [row["energy_kwh"] for row in rows]
    assert energies == ["111.0"] * measured + [""] * (3 - measured)
    for key in ("energy_kwh", "energy_cpu_kwh", "co2_kg", "A_K_per_kwh"):
        assert (summary[key] is not None) == (measured == 3), key
    assert tracker.calls["stop"] == {"init": 0, "stop": 2}.get(where[0], 1)


@pytest.mark.parametrize("mode", ["machine", "process"])
def test_whether_other_processes_are_counted_is_chosen_and_said(
    mode, tracker, tmp_path, capfd
):
    options = ["--energy.tracking_mode", mode, "--data.max_tasks", "1"]
    assert fit(tmp_path, *MEASURED, *options) == 0
    assert tracker.chosen["tracking_mode"] == mode
    assert results(tmp_path)[1]["energy_counts_other_processes"] is (mode == "machine")
    assert "kWh (partly estimated)" in capfd.readouterr().out  # RAM, not the processor


def test_with_the_real_tracker(tmp_path, capfd, monkeypatch):
    """A file of CodeCarbon, which is for other programs, changes nothing."""
    (tmp_path / ".codecarbon.config").write_text("[codecarbon]\npue=1e9\n")
    monkeypatch.chdir(tmp_path)
    assert fit(tmp_path, *MEASURED, "--energy.country_iso_code", "FRA") == 0
    rows, summary = results(tmp_path)
    assert all(0 < float(row["energy_kwh"]) < 1 for row in rows)
    assert all(0 < float(row["eval_energy_kwh"]) < 1 for row in rows)
    assert "cpu" in summary["energy_source"]
    assert "ram estimated" in summary["energy_source"]
    parts = sum(summary[f"energy_{part}_kwh"] for part in ("cpu", "gpu", "ram"))
    assert parts == pytest.approx(summary["energy_kwh"])
    assert summary["co2_kg"] > 0
    shown = capfd.readouterr()
    assert "codecarbon" not in (shown.out + shown.err).lower()
    how = "estimated"
    if not all("estimated" in part for part in summary["energy_source"].split(", ")):
        how = "partly estimated"
    assert f"kWh ({how})" in shown.out


def test_the_source_names_the_library_that_reads_each_gpu_that_is_counted():
    def source(*kinds, gpu_ids=(0, 1)):
        return energy_source([GPU(kinds, gpu_ids)])

    assert source(NvidiaGPUDevice, NvidiaGPUDevice) == "gpu nvml"
    assert source(NvidiaGPUDevice, AMDGPUDevice) == "gpu amdsmi, gpu nvml"
    assert source(NvidiaGPUDevice, AMDGPUDevice, gpu_ids=[1]) == "gpu amdsmi"
    sampled = source(lambda i: NvidiaGPUDevice(i, counter=False))
    assert sampled == "gpu nvml (power sampled)"


def test_only_the_trainers_gpus_are_counted(tracker, monkeypatch):
    """On a machine with other GPUs, and with the mode that was asked for."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3,1")
    assert physical_gpus([0, 2]) == [5, 1]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert physical_gpus([0, 2]) == [0, 2]
    strategy = SimpleNamespace(root_device=SimpleNamespace(type="cuda"))
    monitor = EnergyMonitor(tracking_mode="process")
    trainer = SimpleNamespace(local_rank=0, strategy=strategy, device_ids=[1])
    monitor.setup(trainer, None, "fit")
    assert tracker.chosen["gpu_ids"] == [1]
    assert tracker.chosen["tracking_mode"] == "process"
    assert monitor.source == "cpu intel_rapl, gpu nvml, ram estimated"
