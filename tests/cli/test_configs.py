"""Configurations: each in the repository runs whatever is laid over it; their names, and the
recommended one.
"""

import contextlib
import io
import json
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import yaml

from cifnet_pl import CalibrationBuffer, CIFNetModule
from cifnet_pl.__main__ import main
from cifnet_pl.cli.configs import (
    config_files,
    find_config,
)
from cifnet_pl.cli.parsing import (
    METHOD_OPTIONS,
    with_clean_heads,
    with_recommended,
)
from cifnet_pl.heads import CIFNetHead, RidgeHead
from cifnet_pl.utilities.errors import UsageError
from tests.command_line import DATA, make_images

CONFIGS = Path(__file__).parents[2] / "configs"
# Those of paper and sweeps are sweeps; those of iterative are run by
# tests/iterative/test_configs.py.
ELSEWHERE = {"paper", "sweeps", "iterative"}
ALL = sorted(
    p
    for p in CONFIGS.rglob("*.yaml")
    if not ELSEWHERE & set(p.relative_to(CONFIGS).parts)
)


def resolved(*args: str) -> dict:
    """What ``--print_config`` shows."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), pytest.raises(SystemExit) as stop:
        main(["fit", *args, "--print_config"])
    assert stop.value.code in (0, None)
    return yaml.safe_load(text.getvalue())


def head_of(*args: str) -> dict:
    return resolved(*args)["model"]["init_args"]["head"]


@pytest.mark.parametrize(
    "path", ALL, ids=lambda path: path.relative_to(CONFIGS).as_posix()
)
def test_config_runs(path, tmp_path):
    tiny = [
        *DATA,
        "--data.root",
        "null",
        "--data.max_tasks",
        "2",
        "--data.class_order",
        "3",
    ]
    content = yaml.safe_load(path.read_text())
    written = content["model"]["init_args"]
    settings = (written.get("head") or {}).get("init_args", {})
    if "width" in settings:  # narrower, for time
        settings["width"] = 64
        tiny += ["--model.head.width", "64"]
    assert main(["fit", "--config", str(path), *tiny, "--logs", str(tmp_path)]) == 0
    run = tmp_path / content["experiment"] / "version_0"
    saved = yaml.safe_load((run / "config.yaml").read_text())
    # What the file itself says about the head and the buffer is what ran.
    for part in {"head", "buffer"} & written.keys():
        ran = saved["model"]["init_args"][part]
        assert (written[part] is None) == (ran is None)
        if ran is not None:
            assert written[part]["init_args"].items() <= ran["init_args"].items()
    assert written.keys() <= saved["model"]["init_args"].keys()


class TestHeads:
    """A head never gets options that were meant for a head of another class."""

    FOLDER = ("--config", str(CONFIGS / "folder.yaml"))
    LOCKED = ("--config", str(CONFIGS / "ablation" / "locked.yaml"))
    EXACT = ("--config", str(CONFIGS / "digits_ridge.yaml"))

    def test_default_is_the_recommended_one(self):
        head = head_of("--data.source", "digits")
        assert head["class_path"] == "cifnet_pl.heads.RidgeHead"
        head = head_of("--data.source", "digits", "--model.head.update_past", "false")
        assert head["class_path"] == "cifnet_pl.heads.CIFNetHead"

    @pytest.mark.parametrize(
        ("config", "spelling"),
        [
            ((), ["--model.head", "RidgeHead"]),
            (FOLDER, ["--model.head=RidgeHead"]),
            (LOCKED, ["--model.head", "cifnet_pl.heads.RidgeHead"]),
            (LOCKED, ["--model.init_args.head", "RidgeHead"]),
            (LOCKED, ["--model.head", '{"class_path": "RidgeHead"}']),
        ],
        ids=str,
    )
    def test_ridge_is_not_inherited(self, config, spelling):
        head = head_of(*config, *spelling)
        assert head["class_path"] == "cifnet_pl.heads.RidgeHead"
        assert head["init_args"]["ridge"] == "gcv"
        assert "update_past" not in head["init_args"]

    def test_nor_from_one_file_by_the_next(self):
        head = head_of(*self.LOCKED, *self.EXACT, "--model.head.epsilon", "0.1")
        assert head["init_args"] | {"ridge": "gcv", "epsilon": 0.1} == head["init_args"]
        head = head_of(*self.EXACT, *self.LOCKED)
        assert head["class_path"] == "cifnet_pl.heads.CIFNetHead"
        assert head["init_args"]["update_past"] is False

    def test_options_of_the_same_class_stay(self):
        head = head_of(
            *self.LOCKED, "--model.head", "CIFNetHead", "--model.head.ridge", "5.0"
        )
        assert head["init_args"]["update_past"] is False
        assert head["init_args"]["ridge"] == 5.0

    def test_options_before_and_after_the_class_count(self):
        head = head_of(
            *self.LOCKED,
            "--model.head.dtype",
            "float32",
            "--model.head.ridge",
            "2",
            "--model.head",
            "RidgeHead",
            "--model.head.epsilon",
            "0.2",
        )
        assert (
            head["init_args"] | {"ridge": 2.0, "epsilon": 0.2, "dtype": "float32"}
            == head["init_args"]
        )


def test_fast_is_the_default_without_the_mirror():
    folder, fast = (
        resolved("--config", name)["model"]["init_args"] for name in ("folder", "fast")
    )
    assert folder.pop("backbone") == fast.pop("backbone") + "+mirror"
    assert folder == fast


# ---------------------------------------------------------------------- by name


def test_all_are_listed_with_a_line_each(capsys):
    assert main(["configs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {
        line.split("  ")[0].strip(): line for line in lines[: len(config_files())]
    }
    assert list(listed) == list(config_files())
    assert {"quickstart", "heads/ridge", "streams/blurry"} <= listed.keys()
    for name, line in listed.items():
        assert len(line.removeprefix(name).strip()) > 20


def test_a_name_a_path_and_neither(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config("heads/ridge") == config_files()["heads/ridge"]
    Path("quickstart").write_text("experiment: mine")
    assert find_config("quickstart") == Path("quickstart")  # a file that is there wins
    with pytest.raises(
        UsageError,
        match="unknown configuration 'heads/rigde': did you mean heads/ridge",
    ):
        find_config("heads/rigde")
    with pytest.raises(UsageError, match=r"configuration file no\.yaml does not exist"):
        find_config("no.yaml")
    ridge = str(config_files()["heads/ridge"])
    words = ["--config", "heads/ridge", "--config=heads/ridge", "-c", "heads/ridge"]
    cleaned = with_clean_heads([*words, "--experiment", "folder"])
    files = [word for word in cleaned if ridge in word]
    assert files == [f"--config={ridge}", f"--config={ridge}", f"-c={ridge}"]
    assert cleaned[-2:] == ["--experiment", "folder"]


def test_images_alone_are_learned_by_the_recommended_method(
    tmp_path, monkeypatch, capsys
):
    make_images(tmp_path / "images", ["ant", "bee", "cow"])
    monkeypatch.chdir(tmp_path)
    small = [
        "--model.backbone",
        "pixels:8",
        "--data.image_size",
        "8",
        "--energy.enabled",
        "false",
    ]
    assert main(["fit", "--data.root", "images", *small]) == 0
    assert 'using the configuration "folder"' in capsys.readouterr().err
    ran = yaml.safe_load(
        Path("lightning_logs/default/version_0/config.yaml").read_text()
    )
    model = ran["model"]["init_args"]
    assert model["head"]["class_path"].endswith("RidgeHead")
    assert model["calibrate"] is True
    assert (ran["data"]["classes_per_task"], ran["data"]["source"]) == (3, "folder")


def test_an_evaluation_has_the_same_default(tmp_path, capsys):
    images = make_images(tmp_path / "images", ["ant", "bee"], 5)
    given = ["--data.root", str(images), "--model.backbone", "pixels:4"]
    given += ["--data.image_size", "4", "--logs", str(tmp_path)]
    assert main(["fit", *given, "--energy.enabled", "false"]) == 0
    assert main(["validate", *given, "--ckpt_path", "last"]) == 0
    assert "not calibrated" not in capsys.readouterr().out


def test_options_of_the_papers_head_alone_choose_it():
    only = set(signature(CIFNetHead).parameters) - set(signature(RidgeHead).parameters)
    assert {f"model.head.{name}" for name in only} <= set(METHOD_OPTIONS)


@pytest.mark.parametrize(
    ("words", "is_recommended"),
    [
        (["--logs", "l"], False),
        (["--data.root", "p", "--config", "folder"], False),
        (["--data.root", "p", "--config", "iterative/replay"], False),
        (["--data.root", "p", "--model.head", "NCMHead"], False),
        (["--data.root=p", "--model.buffer", "null"], False),
        (["--data.root", "p", "--data.source", "imagenet100"], True),
        (["--data.source=embeddings", "--data.root", "p"], True),
        (["--data.source", "hf:NAME", "--model.backbone", "pixels:8"], True),
        (["--config", "{tmp}/data.yaml"], True),
    ],
)
def test_the_recommended_method_is_that_of_every_source(
    words, is_recommended, tmp_path
):
    """Unless a method is named."""
    (tmp_path / "data.yaml").write_text("data: {source: webdataset, root: p}")
    words = [word.format(tmp=tmp_path) for word in words]
    recommended = with_recommended(words)
    assert (recommended != words) == is_recommended
    assert recommended[-len(words) :] == words


def test_a_file_of_embeddings_without_options(tmp_path, capsys):
    """Rare classes are found, too; a backbone that does not apply is left out."""
    draw = np.random.default_rng(0)
    counts = [1200, 120, 12, 5]
    means = draw.normal(size=(4, 16))
    labels = np.repeat(np.arange(4), counts)
    test = np.repeat(np.arange(4), 25)
    every = np.concatenate([labels, test])
    z = means[every] + 0.5 * draw.normal(size=(len(every), 16))
    split = ["train"] * len(labels) + ["test"] * len(test)
    file = tmp_path / "z.npz"
    np.savez(file, embeddings=z.astype(np.float32), labels=every, split=split)
    source = ["--data.source", "embeddings", "--data.root", str(file)]
    quiet = ["--energy.enabled", "false", "--logs", str(tmp_path)]
    assert main(["fit", *source, *quiet]) == 0
    assert "efficientnet_lite0+layers+mirror is left out" in capsys.readouterr().out
    summary = json.loads((tmp_path / "default/version_0/summary.json").read_text())
    assert summary["A_K"] >= 95
    assert main(["fit", *source, *quiet, "--config", "folder"]) == 0
    again = json.loads((tmp_path / "folder/version_0/summary.json").read_text())
    assert again["A_K"] == summary["A_K"]
    assert "not calibrated" not in capsys.readouterr().out
    # The paper's head is asked for: what is missing is said.
    assert main(["fit", *source, *quiet, "--model.head", "CIFNetHead"]) == 0
    said = capsys.readouterr().out
    assert "bins; probabilities not calibrated" in said
    assert "use the recommended head" in said
    model = tmp_path / "default" / "version_1"
    words = ["--model", str(model), "--images", str(file)]
    assert main(["classify", *words, "--output", str(tmp_path / "c.csv")]) == 0
    assert capsys.readouterr().err.count("not calibrated") == 1


def test_the_head_of_python_is_the_recommended_one():
    config = yaml.safe_load(config_files()["folder"].read_text())["model"]["init_args"]
    module = CIFNetModule("none:16")
    assert module.model.calibrated == config["calibrate"]
    settings = module.head.settings()
    assert {key: settings[key] for key in config["head"]["init_args"]} == config[
        "head"
    ]["init_args"]
    assert module.buffer.capacity == config["buffer"]["init_args"]["capacity"]
    kept = CalibrationBuffer(50)
    assert CIFNetModule("none:16", buffer=kept).buffer is kept
