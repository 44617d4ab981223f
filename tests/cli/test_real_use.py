"""What people meet: ranks left in the environment, rivals, signals, pipes and odd names."""

import os
import signal
from pathlib import Path

import pytest
from lightning.pytorch.utilities import rank_zero_only

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.cli.classify import ClassificationTable
from cifnet_pl.utilities.files import exclusive
from cifnet_pl.utilities.processes import RANKS
from cifnet_pl.utilities.run_folders import RunChoice, locked_run
from tests.command_line import assert_ends, fit, learned, make_images, rows, run_cifnet
from tests.data.test_sources import COMPOSED, DECOMPOSED
from tests.models import empty, learn_task

ONE_TASK = ("--data.max_tasks", "1")

SLURM_JOB = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NAME": "jupyter",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
"""A notebook, a shell or a batch script in a job of eight tasks runs by itself."""


@pytest.mark.parametrize(
    "left", [SLURM_JOB, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "2222"}]
)
def test_one_process_is_the_first_whatever_rank_is_left(left, tmp_path, monkeypatch):
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_zero_only, "rank", 1, raising=False)
    folder = learned(tmp_path, *ONE_TASK)
    assert {"summary.json", "config.yaml"} <= set(os.listdir(folder))


def test_slurm_tasks_that_do_not_fit_are_one_sentence(tmp_path, monkeypatch, capsys):
    """A step of eight tasks without --ntasks-per-node, which Lightning refuses."""
    step = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "0"}
    for name, value in (SLURM_JOB | step).items():
        monkeypatch.setenv(name, value)
    assert_ends(fit(tmp_path, *ONE_TASK), 2, "--ntasks-per-node", capsys)


def test_no_time_to_learn_is_said(tmp_path, capsys):
    limit = ["--trainer.max_time", "00:00:00:00"]
    assert_ends(fit(tmp_path, *limit), 1, "nothing was learned", capsys)
    assert not list(tmp_path.rglob("version_*"))


def test_a_new_run_takes_the_next_free_version_and_locks_that_only(tmp_path):
    place = RunChoice(tmp_path / "version_0")
    for taken in range(3):  # by runs that began after the choice
        with locked_run(place) as folder:
            assert folder.name == f"version_{taken}"
            folder.mkdir()
            for earlier in range(taken):
                with exclusive(tmp_path / f"version_{earlier}"):
                    pass


@pytest.mark.parametrize(
    "other",
    [
        ("--data.class_order", "7"),
        ("--data.stream", "Returning"),
        ("--data.tune", "0.5"),
    ],
)
def test_a_run_goes_on_with_the_same_tasks_only(other, tmp_path, capsys):
    folder = learned(tmp_path, *ONE_TASK)
    before = (folder / "config.yaml").read_text()
    code = fit(tmp_path, "--ckpt_path", "last", *other)
    assert_ends(code, 2, "which is another experiment", capsys)
    assert (folder / "config.yaml").read_text() == before


@pytest.fixture
def model(tmp_path) -> Path:
    make_images(tmp_path / "images", ["ant", "bee"], 6)
    learn_task(empty("ridge"), ["ant", "bee"]).save(tmp_path / "model")
    return tmp_path / "model"


def options_of(model: Path, output: object) -> list[str]:
    images = str(model.parent / "images")
    return ["--model", str(model), "--images", images, "--output", str(output)]


def test_classify_writes_to_the_standard_output(model, tmp_path, capfd):
    assert main(["classify", *options_of(model, tmp_path / "out.csv")]) == 0
    capfd.readouterr()
    assert main(["classify", *options_of(model, "-")]) == 0
    shown = capfd.readouterr()
    assert shown.out.encode() == (tmp_path / "out.csv").read_bytes()
    assert "12 images classified in the standard output" in shown.err
    assert not Path("-").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(model, tmp_path, watch, capsys, number):
    if signal.getsignal(number) not in (signal.default_int_handler, signal.SIG_DFL):
        pytest.skip("the test runner handles this signal")
    watch(ClassificationTable, "_cells", lambda *_: os.kill(os.getpid(), number))
    before = sorted(tmp_path.iterdir())
    assert main(["classify", *options_of(model, tmp_path / "out.csv")]) == 128 + number
    assert "stopped; no file is left half written" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_a_repeated_command_finds_its_output_there(model, tmp_path, capsys):
    make_images(tmp_path / "new", ["cow", "dog"], 4)
    extend = ["extend", "--images", str(tmp_path / "new")]
    for words in (extend, ["forget", "--class", "ant"], ["export"]):
        output = ["--output", str(tmp_path / words[0])]
        command = [*words, "--model", str(model), *output]
        assert main(command) == 0
        file = tmp_path / words[0] / "config.json"
        before = file.read_bytes()
        capsys.readouterr()
        assert main(command) == 0
        assert "is already there" in capsys.readouterr().err
        assert file.read_bytes() == before


# ---------------------------------------------------------------------- folders as people have them


@pytest.fixture(scope="module")
def accented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two classes, one of which has an accent."""
    place = tmp_path_factory.mktemp("model")
    images = make_images(place / "images", ["ant", COMPOSED], 6)
    cifnet_pl.extend(empty("ridge"), images).model.save(place / "m")
    return place / "m"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("classify", ["4 unreadable", "1 file is passed over"]),
        ("watch --once", ["pipe.png", "device.png"]),
    ],
)
def test_no_command_waits_for_a_pipe(command, said, accented, tmp_path, capsys):
    folder = make_images(tmp_path / "new", ["ant"], 3)
    os.mkfifo(folder / "pipe.png")
    for name, place in (("nowhere", "gone"), ("circle", "circle")):
        (folder / f"{name}.png").symlink_to(f"{place}.png")
    (folder / "device.png").symlink_to("/dev/zero")
    (folder / "1.jxl").write_bytes(b"x")
    table = tmp_path / "a.csv"
    words = f"{command} --model {accented} --images {folder} --output {table}"
    assert main(words.split()) == 0
    assert len(rows(table)) == 3
    shown = capsys.readouterr()
    assert [part for part in said if part not in shown.out + shown.err] == []


def test_extend_knows_a_class_in_another_unicode_form(accented, tmp_path):
    more = make_images(tmp_path / "more", [DECOMPOSED, "elk"], 4)
    given = {"model": accented, "images": more, "output": tmp_path / "b"}
    assert run_cifnet("extend", "--more", **given) == 0
    extended = cifnet_pl.load(tmp_path / "b")
    assert extended.class_names == [COMPOSED, "ant", "elk"]
    given = {"model": tmp_path / "b", "output": tmp_path / "c"}
    assert run_cifnet("forget", class_=DECOMPOSED, **given) == 0
    assert cifnet_pl.load(tmp_path / "c").class_names == ["ant", "elk"]


def test_classes_of_one_image_are_learned_and_not_scored(tmp_path, capsys, recwarn):
    images = make_images(tmp_path / "images", ["ant", "bee"], 1)
    data = ["--data.source", "folder", "--data.root", str(images)]
    learned(tmp_path / "logs", *data, "--model.head", "RidgeHead")
    assert "Accuracy not measured: no test images" in capsys.readouterr().out
    assert not [warning for warning in recwarn if "compute" in str(warning.message)]
