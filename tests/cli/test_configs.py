"""Configurations: each in the repository learns; their names, and the recommended one."""

from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from cifnet_pl import CalibrationBuffer, CIFNetModule
from cifnet_pl.__main__ import main
from cifnet_pl.cli.parsing import (
    METHOD_OPTIONS,
    find_config,
    with_clean_heads,
    with_recommended,
)
from cifnet_pl.heads import CIFNetHead, RidgeHead
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.files import config_files, dump_yaml
from tests.command_line import DATA, make_images, prepared, summary_of
from tests.models import WIDTH, learn_task

# Those of paper and sweeps are sweeps; tests/iterative/test_configs.py runs those of iterative.
ALL = {
    name: path
    for name, path in config_files().items()
    if name.partition("/")[0] not in ("paper", "sweeps", "iterative")
}
TINY = [*DATA, "--data.root=null", "--data.max_tasks=2", "--data.class_order=3"]


@pytest.mark.parametrize("name", ALL)
def test_each_learns(name, tmp_path):
    """Those that have a model alone in memory, the others as a run."""
    content = yaml.safe_load(ALL[name].read_text())
    written = content["model"]["init_args"]
    settings = (written.get("head") or {}).get("init_args", {})
    words = ["--config", name, *TINY, "--logs", str(tmp_path)]
    if "width" in settings:  # narrower, for time
        settings["width"] = 64
        words += ["--model.head.width", "64"]
    if content.keys() == {"experiment", "seed_everything", "model"}:
        made = prepared(*words, f"--model.backbone=none:{WIDTH}")
        model = made.parser.instantiate(made.config).model.model
        learn_task(model, ["ant", "bee"])
        assert model.head.probabilities(torch.ones(1, WIDTH)).isfinite().all()
        used = made.config.as_dict()["model"]["init_args"]
    else:
        assert main(["fit", *words]) == 0
        run = tmp_path / content["experiment"] / "version_0"
        used = yaml.safe_load((run / "config.yaml").read_text())["model"]["init_args"]
    # What the file itself says about the head and the buffer is what learned.
    assert written.keys() <= used.keys()
    for part in {"head", "buffer"} & written.keys():
        assert (written[part] is None) == (used[part] is None)
        if used[part] is not None:
            assert written[part]["init_args"].items() <= used[part]["init_args"].items()


class TestHeads:
    """A head never gets options that were meant for a head of another class."""

    LOCKED = ("--config", "ablation/locked")
    EXACT = ("--config", "digits_ridge")

    def head_of(self, *words):
        config = prepared(*words).config.as_dict()
        head = config["model"]["init_args"]["head"]
        return head["class_path"].removeprefix("cifnet_pl.heads."), head["init_args"]

    @pytest.mark.parametrize(
        "words",
        [
            ("--model.head", "RidgeHead"),
            (*LOCKED, "--model.head=cifnet_pl.heads.RidgeHead"),
            (*LOCKED, "--model.init_args.head", "RidgeHead"),
            (*LOCKED, "--model.head", '{"class_path": "RidgeHead"}'),
        ],
        ids=str,
    )
    def test_ridge_is_not_inherited(self, words):
        head, settings = self.head_of(*words)
        assert (head, settings["ridge"]) == ("RidgeHead", "gcv")
        assert "update_past" not in settings

    def test_nor_from_one_file_by_the_next(self):
        words = (*self.LOCKED, *self.EXACT, "--model.head.epsilon", "0.1")
        _, settings = self.head_of(*words)
        assert settings | {"ridge": "gcv", "epsilon": 0.1} == settings
        head, settings = self.head_of(*self.EXACT, *self.LOCKED)
        assert (head, settings["update_past"]) == ("CIFNetHead", False)

    def test_options_of_the_same_class_stay(self):
        own = ("--model.head", "CIFNetHead", "--model.head.ridge", "5.0")
        _, settings = self.head_of(*self.LOCKED, *own)
        assert (settings["update_past"], settings["ridge"]) == (False, 5.0)

    def test_options_before_and_after_the_class_count(self):
        words = "--model.head.dtype float32 --model.head.ridge 2 --model.head RidgeHead"
        words += " --model.head.epsilon 0.2"
        _, settings = self.head_of(*self.LOCKED, *words.split())
        given = {"ridge": 2.0, "epsilon": 0.2, "dtype": "float32"}
        assert settings | given == settings


def test_fast_is_the_default_without_the_mirror():
    files = [config_files()[name] for name in ("folder", "fast")]
    folder, fast = [yaml.safe_load(file.read_text())["model"] for file in files]
    fast["init_args"]["backbone"] += "+mirror"
    assert folder == fast


# ---------------------------------------------------------------------- by name


def test_all_are_listed_with_a_line_each(capsys):
    assert main(["configs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for (name, _), line in zip(config_files().items(), lines, strict=False):
        listed, _, summary = line.partition("  ")
        assert listed == name
        assert len(summary.strip()) > 20
    assert {"quickstart", "heads/ridge", "streams/blurry"} <= config_files().keys()


def test_a_name_a_path_and_neither(cwd):
    assert find_config("heads/ridge") == config_files()["heads/ridge"]
    Path("quickstart").write_text("experiment: mine")
    assert find_config("quickstart") == Path("quickstart")  # a file that is there wins
    with pytest.raises(UsageError, match="'heads/rigde': did you mean heads/ridge"):
        find_config("heads/rigde")
    ridge = str(config_files()["heads/ridge"])
    words = ["--config", "heads/ridge", "--config=heads/ridge", "-c", "heads/ridge"]
    cleaned = with_clean_heads([*words, "--experiment", "folder"])
    files = [word for word in cleaned if ridge in word]
    assert files == [f"--config={ridge}", f"--config={ridge}", f"-c={ridge}"]
    assert cleaned[-2:] == ["--experiment", "folder"]


def test_images_alone_have_the_recommended_method(cwd, capsys):
    """An evaluation has the same default."""
    make_images(cwd / "images", ["ant", "bee", "cow"], 5)
    given = ["--data.root", "images", "--model.backbone", "pixels:4"]
    given += ["--data.image_size", "4"]
    assert main(["fit", *given, "--energy.enabled", "false"]) == 0
    assert 'using the configuration "folder"' in capsys.readouterr().err
    run = Path("lightning_logs/default/version_0")
    ran = yaml.safe_load((run / "config.yaml").read_text())
    model = ran["model"]["init_args"]
    assert model["head"]["class_path"].endswith("RidgeHead")
    assert model["calibrate"] is True
    assert (ran["data"]["classes_per_task"], ran["data"]["source"]) == (10, "folder")
    assert main(["validate", *given, "--ckpt_path", "last"]) == 0
    assert "not calibrated" not in capsys.readouterr().out


def test_options_of_the_papers_head_alone_choose_it():
    only = set(signature(CIFNetHead).parameters) - set(signature(RidgeHead).parameters)
    assert {f"model.head.{name}" for name in only} <= set(METHOD_OPTIONS)
    words = ("--data.source", "digits", "--model.head.update_past", "false")
    chosen = prepared(*words).config.model.init_args.head
    assert chosen.class_path == "cifnet_pl.heads.CIFNetHead"


@pytest.mark.parametrize(
    ("words", "is_recommended"),
    [
        ("--logs l", False),
        ("--data.root p --config folder", False),
        ("--data.root p --config iterative/replay", False),
        ("--data.root p --model.head NCMHead", False),
        ("--data.root=p --model.buffer null", False),
        ("--data.source hf:NAME --model.backbone pixels:8", True),
        ("--config {tmp}/data.yaml", True),
    ],
)
def test_where_a_method_is_recommended(words, is_recommended, tmp_path):
    """Unless a method is named."""
    (tmp_path / "data.yaml").write_text("data: {source: webdataset, root: p}")
    given = words.format(tmp=tmp_path).split()
    recommended = with_recommended(given)
    assert (recommended != given) == is_recommended
    assert recommended[-len(given) :] == given


def test_a_file_of_embeddings_without_options(tmp_path, capsys):
    """Rare classes are found, too."""
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), [1200, 120, 12, 5])
    every = np.concatenate([labels, np.repeat(np.arange(4), 25)])
    z = draw.normal(size=(4, 16))[every] + 0.5 * draw.normal(size=(len(every), 16))
    split = ["train"] * len(labels) + ["test"] * 100
    file = tmp_path / "z.npz"
    np.savez(file, embeddings=z.astype(np.float32), labels=every, split=split)
    words = f"fit --data.source embeddings --data.root {file} --logs {tmp_path}"
    words += " --energy.enabled false"
    assert main(words.split()) == 0
    assert "not calibrated" not in capsys.readouterr().out
    summary = summary_of(tmp_path / "default/version_0")
    assert summary["A_K"] >= 95


def test_the_head_of_python_is_the_recommended_one():
    config = yaml.safe_load(config_files()["folder"].read_text())["model"]["init_args"]
    module = CIFNetModule("none:16")
    assert module.model.calibrated == config["calibrate"]
    assert config["head"]["init_args"].items() <= module.head.settings().items()
    assert module.buffer.capacity == config["buffer"]["init_args"]["capacity"]
    kept = CalibrationBuffer(50)
    assert CIFNetModule("none:16", buffer=kept).buffer is kept


# ---------------------------------------------------------------------- reads back as it was given

SMALL = "--model.backbone pixels:4 --data.image_size 4 --data.num_workers 0"
SMALL += " --energy.enabled false --model.head RidgeHead --data.source folder"
SMALL += " --data.root images --data.classes_per_task 16"
NAMES = ["1e5", "x", "010", "no", "null", "0x10", "1_000", "2024-01-01", "12:30"]
NAMES += ["nan", "true", "~", "-3", "a: b", "[c]", "1.5"]


def test_class_order(cwd: Path):
    make_images(cwd / "images", NAMES, 2)
    style = {"default_style": "'", "default_flow_style": True, "width": 1000}
    order = yaml.safe_dump(NAMES, **style).strip()
    names = ["--data.class_order", order, "--experiment", "1e5", "--logs", "010"]
    # A callback of Lightning that has a member of an enumeration among its options.
    names += ["--trainer.callbacks+=Timer", "--trainer.callbacks.duration=01:00:00:00"]
    assert main(["fit", *SMALL.split(), *names]) == 0
    stored = Path("010") / "1e5" / "version_0" / "config.yaml"
    config = yaml.safe_load(stored.read_text())
    assert (config["data"]["class_order"], config["experiment"]) == (NAMES, "1e5")
    again = prepared("--config", str(stored))
    assert again.config.data.class_order == NAMES
    assert (again.config.experiment, again.config.logs) == ("1e5", "010")
    of_positions = prepared("--data.class_order", "[1, 0]")
    assert of_positions.config.data.class_order == [1, 0]


def test_yaml_texts_stay_texts():
    # What the command line reads with.
    from jsonargparse._loaders_dumpers import yaml_load

    for name in [*NAMES, "", " a", "1e-3", "1.5e3", "._", "007", "yes", "inf"]:
        content = {"key": name, "list": [name]}
        text = dump_yaml(content)
        assert yaml_load(text) == yaml.safe_load(text) == content
