"""Energy per task: learning apart from evaluation, each component apart, and never the end of a
run.
"""

import warnings
from collections import Counter
from types import SimpleNamespace

import codecarbon
import pytest

from cifnet_pl.heads import RidgeHead
from cifnet_pl.iterative import FinetuneModule
from cifnet_pl.learning.callbacks.energy import EnergyMonitor, physical_gpus
from tests.command_line import learned, summary_of
from tests.iterative.suite import data, install, learner, save_at
from tests.lightning_runs import digits, module, trainer


def part(kind, **values):
    """A part of the hardware, which CodeCarbon tells by its class."""
    return type(kind, (), values)()


GPUS = [part("NvidiaGPUDevice"), part("AMDGPUDevice")]
GPU = part("GPU", devices=SimpleNamespace(devices=GPUS))
HARDWARE = [part("Cpu", _mode="intel_rapl"), GPU, part("RAM")]


class Tracker:
    """Counts a reading as 1 kWh of CPU, 10 of GPU, 100 of RAM and 0.5 kg, since the reading
    before.
    """

    fail_at = ("never", 0)
    calls: Counter[str]
    chosen: dict[str, object]

    def __init__(self, **options):
        self.chosen.update(options)
        self.hit("init")
        self._hardware = HARDWARE

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


def measured(folder, *callbacks, made=None, fed=None, path=None, **options):
    """The record of a run of two tasks; options are the monitor's."""
    made = made or module(head=RidgeHead, buffer=None)
    run = trainer(folder, EnergyMonitor(**options), *callbacks)
    run.fit(made, datamodule=fed or digits(max_tasks=2), ckpt_path=path)
    return made.record


def test_learning_and_evaluation_are_apart(tracker, tmp_path):
    record = measured(tmp_path)
    # One reading at the start of a task, one after learning, one after evaluation.
    assert tracker.calls["measure"] == 2 * 3
    assert [row.energy_kwh for row in record.rows] == [111.0] * 2
    # A run on the processor names no GPU that happens to be in the machine.
    sources = {row.energy_source for row in record.rows}
    assert sources == {"cpu intel_rapl, ram estimated"}
    summary = record.summary()
    parts = [summary[f"energy_{part}_kwh"] for part in ("cpu", "gpu", "ram")]
    assert parts == [2.0, 20.0, 200.0]
    assert summary["energy_kwh"] == summary["eval_energy_kwh"] == 222.0
    assert summary["co2_kg"] == 1.0
    assert summary["A_K_per_kwh"] == pytest.approx(summary["A_K"] / 222.0)
    assert summary["energy_counts_other_processes"] is True
    assert tracker.calls["stop"] == 1


@pytest.mark.parametrize("enabled", [True, False])
def test_what_a_task_took_before_a_stop_counts(enabled, tracker, tmp_path, monkeypatch):
    """A save is a reading, too. What was not measured before the stop makes the task unknown."""
    install(monkeypatch.setitem)
    path = tmp_path / "mid.ckpt"
    save = save_at(path, task=1, batches=4)

    def again(*callbacks, **options):
        made = learner(FinetuneModule, epochs=1)
        fed = data(max_tasks=3)
        record = measured(tmp_path, *callbacks, made=made, fed=fed, **options)
        return [row.energy_kwh for row in record.rows]

    whole = again(save, enabled=enabled)
    goes_on = again(path=path)
    if enabled:
        assert whole == goes_on == [111.0, 222.0, 111.0]
    else:
        assert goes_on == [None, None, 111.0]


@pytest.mark.parametrize(
    ("where", "tasks", "stops"),
    [(("init", 1), 0, 0), (("measure", 5), 1, 1), (("stop", 1), 2, 2)],
)
def test_a_failure_ends_no_run(where, tasks, stops, tracker, tmp_path, monkeypatch):
    """It costs the reading."""
    monkeypatch.setattr(tracker, "fail_at", where)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        record = measured(tmp_path, tracking_mode="process")
    assert record.energy_counts_other_processes is (False if tasks else None)
    sentence = [str(w.message) for w in caught if "energy" in str(w.message)]
    assert sentence == ["energy is not measured: RuntimeError: no sensor second line"]
    energies = [row.energy_kwh for row in record.rows]
    assert energies == [111.0] * tasks + [None] * (2 - tasks)
    summary = record.summary()
    sums = ("energy_kwh", "energy_cpu_kwh", "co2_kg", "A_K_per_kwh", "eval_energy_kwh")
    for key in sums:
        assert (summary[key] is not None) == (tasks == 2), key
    assert tracker.calls["stop"] == stops


def test_with_the_real_tracker(cwd, capfd):
    """A file of CodeCarbon, which is for other programs, changes nothing."""
    (cwd / ".codecarbon.config").write_text("[codecarbon]\npue=1e9\n")
    words = "--energy.enabled true --data.max_tasks 1 --energy.country_iso_code FRA"
    run = learned(cwd, *words.split())
    summary = summary_of(run)
    assert 0 < summary["energy_kwh"] < 1
    assert 0 < summary["eval_energy_kwh"] < 1
    assert "cpu" in summary["energy_source"]
    assert "ram estimated" in summary["energy_source"]
    parts = sum(summary[f"energy_{part}_kwh"] for part in ("cpu", "gpu", "ram"))
    assert parts == pytest.approx(summary["energy_kwh"])
    assert summary["co2_kg"] > 0
    shown = capfd.readouterr()
    assert "codecarbon" not in (shown.out + shown.err).lower()
    assert "kWh (estimated)" in shown.out


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
    assert monitor.source == "cpu intel_rapl, gpu nvml, gpu amdsmi, ram estimated"
