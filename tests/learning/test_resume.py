"""A run that was stopped at any moment goes on and ends as if nothing had happened."""

import os
import shutil
import signal
import zipfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

import cifnet_pl.learning.callbacks.task_metrics
from cifnet_pl.__main__ import main
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.cli.lightning_cli import CIFNetCLI
from cifnet_pl.heads import (
    ACILHead,
    CIFNetHead,
    DSALHead,
    KLDAHead,
    RanPACHead,
    RidgeHead,
)
from cifnet_pl.learning.callbacks import TaskCheckpoint, TrajectoryPlot
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_record import RunRecord
from cifnet_pl.utilities.errors import CheckpointError
from cifnet_pl.utilities.files import exclusive
from tests.cli.test_option_errors import one_sentence
from tests.command_line import (
    BUFFER,
    FAST,
    assert_ends,
    assert_same_model,
    checkpoint,
    fit,
    learned,
    make_images,
    measurements,
    summary_of,
)
from tests.killing import Act, Killed, at_call, die, in_a_process, kill_self
from tests.lightning_runs import digits, module, trainer

LINE = "--data.batch_size 16 --seed_everything 5 --data.max_tasks 3"
OPTIONS = [*BUFFER, *LINE.split()]
LAST = ["--ckpt_path", "last"]
RUN = Path("default") / "version_0"


pytestmark = pytest.mark.usefixtures("true_fsync")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A run that nobody stopped."""
    return learned(tmp_path_factory.mktemp("reference"), *OPTIONS)


def assert_same_run(run, reference):
    assert_same_model(run, reference)
    assert measurements(run) == measurements(reference)
    matrices = [folder / "accuracy_matrix.csv" for folder in (run, reference)]
    assert matrices[0].read_text() == matrices[1].read_text()
    ours, theirs = [summary_of(folder)["A_k"] for folder in (run, reference)]
    assert ours == theirs
    assert (run / "trajectory.png").is_file()
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["last.ckpt"]


WRITER = cifnet_pl.learning.callbacks.task_metrics
MOMENTS = {
    "writing its configuration": (WRITER, "write_text", 1, "before"),
    "its first batch": (CIFNetModule, "training_step", 1, "before"),
    "its first solve": (CIFNetHead, "_solve", 1, "after"),
    "its first checkpoint": (torch, "save", 1, "before"),
    "a batch": (CIFNetModule, "training_step", 30, "before"),
    "the last batch of a task": (CIFNetModule, "training_step", 36, "after"),
    "filling its buffer": (CalibrationBuffer, "commit", 2, "after"),
    "closing a task": (CIFNetModule, "finish_task", 2, "before"),
    "solving": (CIFNetHead, "_solve", 2, "after"),
    "evaluating": (CIFNetModule, "probabilities", 4, "before"),
    "writing its tables": (RunRecord, "write_tables", 2, "before"),
    "having written its tables": (RunRecord, "write_tables", 2, "after"),
    "writing a checkpoint": (torch, "save", 2, "after"),
    "having written one": (TaskCheckpoint, "on_train_epoch_end", 2, "after"),
    "having written the last one": (TaskCheckpoint, "on_train_epoch_end", 3, "after"),
    "writing its summary": (WRITER, "write_json", 1, "before"),
    "drawing": (TrajectoryPlot, "on_fit_end", 1, "before"),
}
"""What a run is doing → where it does it, which call of it, and whether it dies before or after
that; in their order.
"""
ONCE = dict.fromkeys(["probabilities", "write_text", "write_json", "on_fit_end"], 0)
CALLS = {"training_step": 18, **ONCE}
"""Calls in each task, where it is not one; those that are made once in a run, or count from any
task on, are 0.
"""


def killed_in_the_middle_of_a_file(logs):
    save = torch.save

    def half(content, file):
        file.write(b"half a checkpoint")
        file.flush()
        kill_self()

    torch.save = at_call(2, save, lambda: setattr(torch, "save", half), after=True)
    return fit(logs, *OPTIONS)


@contextmanager
def callbacks(*of_a_user):
    """Within the context, runs of this process have them as ``trainer.callbacks`` gives them."""
    real = CIFNetCLI.instantiate_trainer

    def instantiate(self, **options):
        self._get(self.config_init, "trainer")["callbacks"] = [*of_a_user]
        return real(self, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CIFNetCLI, "instantiate_trainer", instantiate)
        yield


def signalled(number):
    """A callback that sends this process a signal in its third task."""
    return Act("on_train_batch_end", 2, lambda _: os.kill(os.getpid(), number), 3)


def asked_to_stop(logs):
    with callbacks(signalled(signal.SIGTERM)):
        return fit(logs, *OPTIONS)


@pytest.mark.system
class TestKill:
    def test_at_any_moment(self, reference, tmp_path, monkeypatch):
        """In this process, one death after the other; what the dying would have done an exception
        leaves undone.
        """
        learned_tasks = []
        last = tmp_path / RUN / "checkpoints" / "last.ckpt"
        for owner, name, number, when in MOMENTS.values():
            done = 0
            if last.is_file():
                done = len(torch.load(last)["cifnet"]["task_sizes"])
            learned_tasks.append(done)
            number -= done * CALLS.get(name, 1)
            call = at_call(number, getattr(owner, name), die, when == "after")
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, call)
                with pytest.raises(Killed):
                    fit(tmp_path, *OPTIONS, *LAST)
        assert learned_tasks == [0] * 5 + [1] * 9 + [2] + [3] * 2
        assert fit(tmp_path, *OPTIONS, *LAST) == 0
        assert_same_run(tmp_path / RUN, reference)

    @pytest.mark.parametrize(
        ("run", "code"),
        [
            (killed_in_the_middle_of_a_file, -signal.SIGKILL),
            (asked_to_stop, 128 + signal.SIGTERM),
        ],
    )
    def test_by_the_system(self, run, code, reference, tmp_path):
        """In another process; half a checkpoint is never read, and no litter stays."""
        output = tmp_path / "output"
        assert in_a_process(partial(run, tmp_path), output) == code
        shown = output.read_text()
        assert "Traceback" not in shown
        assert ("stopped after task 2" in shown) == (run is asked_to_stop)
        files = list((tmp_path / RUN / "checkpoints").iterdir())
        assert len(files) == 1 + (run is killed_in_the_middle_of_a_file)
        assert fit(tmp_path, *OPTIONS, *LAST) == 0
        assert_same_run(tmp_path / RUN, reference)

    def test_with_another_precision_it_does_not_go_on(self, tmp_path, capsys):
        """Its later tasks would have other embeddings than its first ones."""
        learned(tmp_path, "--data.max_tasks", "1")
        capsys.readouterr()
        half = [*LAST, "--trainer.precision", "bf16-mixed"]
        said = "made with precision = 32-true, this run has bf16-mixed"
        assert_ends(fit(tmp_path, *half), 1, said, capsys)
        assert main(["validate", *FAST, "--logs", str(tmp_path), *half]) == 0


SAVED = [("on_train_batch_end", 1, 7)]
SAVED += [("on_train_epoch_end", 1, 0), ("on_validation_end", 1, 0)]
"""Hook, task and number of batches at which a callback of a user saves a run."""


@pytest.fixture(scope="module")
def saved(reference, tmp_path_factory):
    """A folder with checkpoints of one run, each named by its moment in ``SAVED``, one with
    "weights" alone, and one of a task that was "solving" (as a signal may write it).
    """
    folder = tmp_path_factory.mktemp("saved")

    def save(moment):
        hook, task, batches = moment
        path = folder / str(moment)
        return Act(hook, task, lambda run: run.save_checkpoint(path), batches)

    def save_weights(run):
        run.save_checkpoint(folder / "weights", weights_only=True)

    weights = Act("on_validation_end", 2, save_weights)
    trainers = []

    def solving():
        trainers[0].save_checkpoint(folder / "solving")

    begun = Act("on_train_start", 0, trainers.append)
    saves = [*map(save, SAVED), weights, begun]
    with callbacks(*saves), pytest.MonkeyPatch.context() as p:
        p.setattr(CIFNetHead, "_solve", at_call(2, CIFNetHead._solve, solving, True))
        assert_same_run(learned(tmp_path_factory.mktemp("logs"), *OPTIONS), reference)
    assert len(list(folder.iterdir())) == len(SAVED) + 2
    return folder


# ---------------------------------------------------------------------- other checkpoints


@pytest.mark.parametrize("moment", SAVED, ids=str)
def test_a_task_that_was_saved_starts_again_clean(moment, saved, reference, tmp_path):
    assert fit(tmp_path, *OPTIONS, "--ckpt_path", str(saved / str(moment))) == 0
    assert_same_run(tmp_path / RUN, reference)


@pytest.mark.parametrize(
    ("command", "name", "said"),
    [
        ("fit", "solving", "it was written while it was being solved"),
        ("fit", "weights", "weights only"),
        ("validate", str(SAVED[0]), "does not hold task 2"),
        ("validate", "weights", ""),
    ],
)
def test_checkpoints_of_half_a_task_or_of_weights_alone(
    command, name, said, saved, tmp_path, capsys
):
    words = f"{command} --logs {tmp_path} --ckpt_path"
    code = main([*words.split(), str(saved / name), *FAST, *OPTIONS])
    assert_ends(code, 1 if said else 0, said, capsys)


def test_a_checkpoint_of_slurm(reference, tmp_path, monkeypatch, capsys):
    """SIGUSR1 before the time limit: Lightning saves and queues the job again, which picks it
    up by itself.
    """
    job = {"NTASKS": "1", "JOB_NAME": "job", "JOB_ID": "7", "NODEID": "0"}
    for name, value in (job | dict.fromkeys(["PROCID", "LOCALID"], "0")).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("PATH", "")  # no scontrol here
    limit = Act("on_train_batch_end", 2, die, 5)
    with callbacks(signalled(signal.SIGUSR1), limit), pytest.raises(Killed):
        fit(tmp_path, *OPTIONS)
    assert (tmp_path / "default" / "hpc_ckpt_1.ckpt").is_file()
    said = ", 2 learned before"
    assert_ends(fit(tmp_path, *OPTIONS), 0, said, capsys)
    assert_same_run(tmp_path / "default" / "version_1", reference)


# ---------------------------------------------------------------------- more tasks and classes


def test_nothing_is_left_to_do(reference, tmp_path, capsys):
    shutil.copytree(reference, tmp_path / RUN)
    last = tmp_path / RUN / "checkpoints" / "last.ckpt"
    before = last.stat().st_mtime_ns
    # A run that never began is not the last one.
    assert fit(tmp_path, *OPTIONS, "--model.buffer.capacity", "3") == 2
    capsys.readouterr()
    assert fit(tmp_path, *OPTIONS, "--data.max_tasks", "1", *LAST) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert ", 3 learned before" in shown.out
    assert f"Run folder {tmp_path / RUN}" in shown.out
    assert shown.out.count("│") == 3 * 8  # the table: a row for each task
    assert_same_run(tmp_path / RUN, reference)
    assert last.stat().st_mtime_ns == before


def test_classes_that_sort_first_and_one_gone(tmp_path, monkeypatch, capsys):
    images = make_images(tmp_path / "images", ["m", "n", "o", "p", "q"])
    words = f"--data.source folder --data.root {images} --data.class_order 7"
    options = [*BUFFER, *words.split()]
    folder = learned(tmp_path, *options)
    first = checkpoint(folder)
    sizes = first["cifnet"]["task_sizes"]
    assert sizes == [2, 2, 1]
    make_images(images, ["a", "b", "z"])
    with monkeypatch.context() as patched:
        patched.setattr(CIFNetModule, "training_step", die)
        with pytest.raises(Killed):
            fit(tmp_path, *options, *LAST)
    assert not (folder / "summary.json").exists()
    assert fit(tmp_path, *options, *LAST) == 0
    then = checkpoint(folder)
    names = then["cifnet"]["class_names"]
    assert names[:5] == first["cifnet"]["class_names"]
    assert sorted(names[5:]) == ["a", "b", "z"]
    assert then["cifnet"]["task_sizes"] == [2, 2, 1, 2, 1]
    assert then["state_dict"]["head.labels"].tolist() == list(range(8))
    summary = summary_of(folder)
    assert (summary["n_classes"], summary["n_tasks"]) == (8, 5)
    # The patterns are easy to tell apart, so a shifted label would be seen.
    assert summary["A_K"] > 80
    # Sums of the first tasks' own samples are as they were: the new classes are only negatives
    # for them.
    name = "head.cohorts.0.sums.counts"
    assert torch.equal(first["state_dict"][name], then["state_dict"][name])
    shutil.rmtree(images / "n")
    capsys.readouterr()
    assert_ends(fit(tmp_path, *options, *LAST), 1, "class 'n'", capsys)


@pytest.mark.parametrize("is_begun", [False, True])
def test_last_without_a_checkpoint(is_begun, reference, tmp_path, capsys):
    said = f"no run of experiment 'default' in {tmp_path} yet: starting with task 1"
    if is_begun:
        (tmp_path / RUN).mkdir(parents=True)
        (tmp_path / RUN / "config.yaml").write_text("")
        said = ""
    one = ["--data.max_tasks", "1"]
    assert_ends(fit(tmp_path, *OPTIONS, *one, *LAST), 0, said, capsys)
    assert measurements(tmp_path / RUN) == measurements(reference)[:2]


OTHER = [
    ({"head": RidgeHead}, {}, "head.class = .*CIFNetHead, .*RidgeHead"),
    ({"head": partial(CIFNetHead, ridge=0.5)}, {}, "head.ridge = 0.01, .* 0.5"),
    ({}, {"split_seed": 5}, "split_seed = 0, .* 5"),
]


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(("model", "data", "said"), OTHER)
def test_other_settings_are_refused(model, data, said, reference, tmp_path):
    path = reference / "checkpoints" / "last.ckpt"
    learner = module(**{"buffer": CalibrationBuffer(300, seed=5), **model})
    with pytest.raises(CheckpointError, match=said):
        trainer(tmp_path).validate(learner, digits(**data), ckpt_path=path)


def test_a_truncated_checkpoint_is_refused(reference, tmp_path, capsys):
    whole = (reference / "checkpoints" / "last.ckpt").read_bytes()
    path = tmp_path / RUN / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    path.write_bytes(whole[:-1])
    (path.parent.parent / "config.yaml").write_text("")
    assert fit(tmp_path, *OPTIONS, *LAST) == 1
    assert f"cannot read checkpoint {path}" in one_sentence(capsys)


def test_one_flipped_bit_is_refused(reference, tmp_path):
    path = tmp_path / "last.ckpt"
    shutil.copy(reference / "checkpoints" / "last.ckpt", path)
    with zipfile.ZipFile(path) as archive:  # the largest are numbers of the head
        entry = max(archive.infolist(), key=lambda entry: entry.file_size)
    content = bytearray(path.read_bytes())
    content[entry.header_offset + entry.file_size // 2] ^= 0x40
    path.write_bytes(content)
    torch.load(path, weights_only=True)  # does not notice
    run = trainer(tmp_path, TaskCheckpoint())
    with pytest.raises(CheckpointError, match="is damaged: the checksum of"):
        run.validate(module(), digits(), ckpt_path=path)


def test_two_runs_in_one_folder(reference, tmp_path, capsys):
    shutil.copytree(reference, tmp_path / RUN)
    with exclusive(tmp_path / RUN):
        assert fit(tmp_path, *OPTIONS, *LAST) == 2
    said = f"another process is writing {tmp_path / RUN}"
    assert said in capsys.readouterr().err
    with exclusive(tmp_path / "default" / "version_1"):
        assert fit(tmp_path, *OPTIONS, "--data.max_tasks", "1") == 0
    assert not (tmp_path / "default" / "version_1").exists()
    assert (tmp_path / "default" / "version_2" / "summary.json").exists()
    assert not list((tmp_path / "default").glob(".*.lock"))


@pytest.mark.parametrize("kind", [ACILHead, DSALHead, RanPACHead, KLDAHead])
def test_a_head_with_a_projection_goes_on(kind, tmp_path):
    """A fresh module has drawn the same projection, which is checked where a state is loaded."""
    head = partial(kind, width=30)
    data = {"max_tasks": 2}
    first = module(head=head)
    begun = trainer(tmp_path, max_epochs=1)
    begun.fit(first, datamodule=digits(**data))
    begun.save_checkpoint(tmp_path / "one.ckpt")
    resumed = module(head=head)
    file = tmp_path / "one.ckpt"
    trainer(tmp_path).fit(resumed, datamodule=digits(**data), ckpt_path=file)
    assert len(resumed.head.tasks) == 2
