"""Two and three processes learn what one learns: the same sums, weights, buffer and
measurements.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import pandas as pd
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.learning import strategy
from cifnet_pl.learning.strategy import StatisticsDDPStrategy, check_trainer
from cifnet_pl.utilities.errors import UsageError
from tests.command_line import (
    BUFFER,
    FAST,
    assert_ends,
    call,
    checkpoint,
    description,
    environment,
    fit,
    learned,
    make_images,
    measurements,
    of_folder,
    summary_of,
)
from tests.killing import ended, in_a_process, start

LINE = "--trainer.devices 2 --trainer.accelerator cpu --trainer.strategy ddp"
TWO = LINE.split()
LAST = ["--ckpt_path", "last"]
KEEP = ["--predictions.every_task", "true"]


@contextmanager
def reserved_port():
    """A port that the system gives to no one who asks for any; whoever is told it can listen."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def several(count, folder, *given, work=None, code=0):
    """All that processes wrote that another program started (as torchrun does), and that ended with
    ``code``. They run a command line, unless they have other work.
    """
    outputs = [folder / f"output_{number}" for number in range(count)]
    with reserved_port() as port:
        processes = []
        for number, output in enumerate(outputs):
            one = partial(work or rank, number, count, port, given)
            processes.append(start(one, output))
        codes = [ended(process) for process in processes]
    shown = "".join(output.read_text() for output in outputs)
    assert codes == [code] * count, shown
    return shown


def rank(number, count, port, words):
    """One of the processes."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NODE_RANK="0")
    os.environ.update(WORLD_SIZE=str(count), LOCAL_RANK=str(number))
    code = main([*words, *TWO, "--trainer.devices", str(count)])
    # gloo's threads may abort an interpreter that ends before them
    assert not torch.distributed.is_initialized()
    return code


def assert_equal_models(run, other, tolerance=1e-9):
    """The same up to the order of a sum, or to ``tolerance`` through a network; the buffer holds
    the same samples.
    """
    ours = checkpoint(run)
    theirs = checkpoint(other)
    assert description(ours) == description(theirs)
    assert ours["state_dict"].keys() == theirs["state_dict"].keys()
    for key, tensor in ours["state_dict"].items():
        wanted = theirs["state_dict"][key]
        is_exact = key.startswith("buffer") and tolerance <= 1e-9
        if is_exact or not tensor.is_floating_point():
            assert torch.equal(tensor, wanted), key
        else:
            assert tensor.shape == wanted.shape
            error = torch.linalg.vector_norm(tensor - wanted)
            assert error <= tolerance * torch.linalg.vector_norm(wanted), key
    for row, wanted_row in zip(measurements(run), measurements(other), strict=True):
        for cell, wanted in zip(row, wanted_row, strict=True):
            if cell != wanted:  # ECE is float32
                close = pytest.approx(float(wanted), rel=tolerance, abs=1e-4)
                assert float(cell) == close
    for name in ("class_accuracy.csv", "confusion.csv"):
        assert (run / name).read_text() == (other / name).read_text()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run of one process."""
    return learned(tmp_path_factory.mktemp("alone"), *BUFFER, *KEEP)


@pytest.mark.system
def test_the_launcher_of_lightning(alone, tmp_path):
    """As a user starts it: one command, which starts the second process itself."""
    done = call("fit", *FAST, *BUFFER, "--logs", str(tmp_path), *TWO)
    assert done.returncode == 0, done.stderr
    assert "10 classes in 5 tasks on 2 x cpu" in done.stdout
    assert done.stdout.count("Run folder") == 1  # only the first process prints
    assert done.stderr == ""
    assert_equal_models(tmp_path / "default" / "version_0", alone)


@pytest.mark.system
def test_torchrun_as_the_documentation_has_it(alone, tmp_path):
    words = ["-m", "--", "cifnet_pl", "fit", *FAST, *BUFFER, *TWO[:4]]
    words += ["--logs", str(tmp_path)]
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    with reserved_port() as port:
        line += ["--master_port", str(port), *words]
        done = subprocess.run(line, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert_equal_models(tmp_path / "default" / "version_0", alone)


def test_another_number_than_torchrun_started_is_refused(tmp_path, monkeypatch, capsys):
    started = {"TORCHELASTIC_RUN_ID": "x", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
    for name, value in (started | dict.fromkeys(["RANK", "LOCAL_RANK"], "0")).items():
        monkeypatch.setenv(name, value)
    words = [*TWO[2:4], "--trainer.devices", "1"]
    said = "torchrun started 2 processes, the Trainer expects 1"
    assert_ends(fit(tmp_path, *words), 2, said, capsys)


@pytest.mark.system
class TestSeveral:
    def test_three_and_then_one_go_on_where_two_stopped_and_predict_the_same(
        self, alone, tmp_path
    ):
        words = [*FAST, *BUFFER, "--logs", str(tmp_path)]
        for count, tasks in ((2, "2"), (3, "4")):
            some = [*KEEP, "--data.max_tasks", tasks, *LAST]
            several(count, tmp_path, "fit", *words, *some)
        assert fit(tmp_path, *BUFFER, *KEEP, *LAST) == 0
        folder = tmp_path / "default" / "version_0"
        assert_equal_models(folder, alone)
        tables = [run / "predictions.parquet" for run in (folder, alone)]
        of_both = map(pd.read_parquet, tables)
        pd.testing.assert_frame_equal(*of_both, check_exact=False, rtol=0, atol=1e-5)
        several(2, tmp_path, "predict", *words, *LAST)
        by_two = (folder / "predictions.csv").read_text()
        assert main(["predict", *words, *LAST]) == 0
        assert (folder / "predictions.csv").read_text() == by_two

    def test_with_fewer_images_than_processes(self, tmp_path):
        """A class of one image for learning and one for testing: the second process gets empty
        batches.
        """
        images = make_images(tmp_path / "images", ["a", "b", "c"], per_class=2)
        options = [*BUFFER, *of_folder(images)]
        one = learned(tmp_path / "one", *options)
        words = ["fit", *FAST, *options, "--logs", str(tmp_path / "two")]
        several(2, tmp_path, *words)
        assert_equal_models(tmp_path / "two" / "default" / "version_0", one)

    def test_a_head_that_keeps_samples_is_refused_at_the_start(self, tmp_path):
        words = ["fit", *FAST, "--logs", str(tmp_path), "--model.head", "KNNHead"]
        shown = several(2, tmp_path, *words, code=2)
        assert "not in 2: --trainer.devices 1" in shown

    def test_through_a_network(self, tmp_path):
        """Another batch shape changes the rounding of a float32 network."""
        images = make_images(tmp_path / "images", ["a", "b", "c", "d"], per_class=9)
        line = "--model.backbone embedded:efficientnet_lite0 --data.image_size 32"
        line += " --model.head.ridge 1.0 --model.engine onnxruntime"
        options = [*BUFFER, *line.split(), *of_folder(images, 2)]
        one = learned(tmp_path / "one", *options)
        words = ["fit", *FAST, *options, "--logs", str(tmp_path / "more")]
        several(3, tmp_path, *words)
        more = tmp_path / "more" / "default" / "version_0"
        assert_equal_models(more, one, 1e-5)
        for run in (one, more):
            summary = summary_of(run)
            assert summary["engine"] == "onnxruntime"

    def test_an_error_of_one_ends_both(self, tmp_path):
        """The corrupt image is in the second half of its batch, which only the second process
        reads.
        """
        images = make_images(tmp_path / "images", ["a"], per_class=40)
        for path in sorted(images.rglob("*.png"))[-9:]:
            path.write_bytes(b"not an image")
        words = ["fit", *FAST, *of_folder(images), "--logs", str(tmp_path)]
        shown = several(2, tmp_path, *words, code=1)
        said = [line for line in shown.splitlines() if "error:" in line]
        assert len(said) == 2
        assert all(line.startswith("cifnet: error: ") for line in said), shown
        assert any("cannot read image" in line for line in said)
        assert "Traceback" not in shown

    def test_copies_and_unreadable_images_are_left_out_as_one_process_does(
        self, tmp_path
    ):
        names = ["ant", "bee", "cow", "dog"]
        images = make_images(tmp_path / "images", names, per_class=15)
        for i in range(4):
            shutil.copy(images / "bee" / "4.png", images / "bee" / f"x {i}.png")
        for i in range(5):  # one of them at least is not held out
            shutil.copy(images / "ant" / f"{i}.png", images / "cow" / f"wrong {i}.png")
        for path in sorted(images.glob("dog/*.png"))[3::4]:
            # Equal files would be copies of one another.
            path.write_bytes(b"not an image: " + str(path).encode())
        words = ["fit", *FAST, *BUFFER, *of_folder(images, 2)]
        words += ["--model.head", "RidgeHead", "--data.batch_size", "7"]
        words += ["--data.on_corrupt", "skip"]
        shown = several(2, tmp_path, *words, "--logs", str(tmp_path / "two"))
        assert shown.count("learned already or twice") == 1
        assert shown.count("in two classes: not learned") == 1
        assert shown.count("3 unreadable images left out: ") == 1
        assert main([*words, "--logs", str(tmp_path / "one")]) == 0
        two = tmp_path / "two" / "default" / "version_0"
        one = tmp_path / "one" / "default" / "version_0"
        found, wanted = [(run / "duplicates.csv").read_text() for run in (two, one)]
        assert found == wanted
        assert_equal_models(two, one)
        assert cifnet_pl.load(two).counts == cifnet_pl.load(one).counts


def rank_alone(words, patience, joins):
    """The first of two processes; the other one never comes, or the group waits for good."""
    strategy.MEETING_SECONDS = patience
    if joins:
        DDPStrategy.setup_distributed = lambda _: time.sleep(60)
    with reserved_port() as port:
        return rank(0, 2, port, words)


@pytest.mark.system
@pytest.mark.parametrize(("patience", "joins"), [(1, False), (-9, True)])
def test_a_process_that_meets_nobody_ends_with_a_sentence(patience, joins, tmp_path):
    words = ["fit", *FAST, "--logs", str(tmp_path)]
    work = partial(rank_alone, words, patience, joins)
    assert in_a_process(work, tmp_path / "output") == 1
    (said,) = (tmp_path / "output").read_text().splitlines()
    assert said.startswith("cifnet: error: the processes of this run did not meet")
    assert "GLOO_SOCKET_IFNAME" in said


def test_trainers_that_the_command_line_did_not_make():
    quiet = {"accelerator": "cpu", "logger": False}
    check_trainer(Trainer(devices=1, **quiet))
    check_trainer(Trainer(devices=2, strategy=StatisticsDDPStrategy(), **quiet))
    with pytest.raises(UsageError, match="does not add up"):
        check_trainer(Trainer(devices=2, strategy=DDPStrategy(), **quiet))
    for limit in ("limit_train_batches", "limit_val_batches"):
        with pytest.raises(UsageError, match=f"{limit} is 0"):
            check_trainer(Trainer(devices=1, **quiet, **{limit: 0}))
