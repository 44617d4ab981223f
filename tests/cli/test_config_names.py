"""Configurations by name, and what ``fit`` does where only photos are named."""

import re
from inspect import signature
from pathlib import Path

import pytest
import yaml
from jsonargparse import Namespace

from cifnet_pl.__main__ import main
from cifnet_pl.cli.configs import DECIDES, config_files, find_config, with_named_configs, with_recommended
from cifnet_pl.cli.lightning_cli import learn_few_classes_at_once
from cifnet_pl.heads import CIFNetHead, RidgeHead
from cifnet_pl.utilities.errors import UsageError
from tests.command_line import FAST, make_photos


def test_all_are_listed_with_a_line_each(capsys):
    assert main(["configs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split("  ")[0].strip(): line for line in lines[: len(config_files())]}
    assert list(listed) == list(config_files())
    assert {"quickstart", "folder", "heads/ridge", "paper/accuracy"} <= listed.keys()
    for name, line in listed.items():
        assert len(line.removeprefix(name).strip()) > 20


def test_a_name_a_path_and_neither(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config("heads/ridge") == config_files()["heads/ridge"]
    Path("quickstart").write_text("experiment: mine")
    assert find_config("quickstart") == Path("quickstart")  # a file that is there wins
    with pytest.raises(UsageError, match="unknown configuration 'heads/rigde': did you mean heads/ridge"):
        find_config("heads/rigde")
    with pytest.raises(UsageError, match=r"configuration file no\.yaml does not exist"):
        find_config("no.yaml")
    ridge = str(config_files()["heads/ridge"])
    words = ["fit", "--config", "heads/ridge", "--config=heads/ridge", "-c", "heads/ridge", "--experiment", "folder"]
    wanted = ["fit", "--config", ridge, f"--config={ridge}", "-c", ridge, "--experiment", "folder"]
    assert with_named_configs(words) == wanted


def test_a_run_by_name_lands_under_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", "quickstart", *FAST, "--data.max_tasks", "1"]) == 0
    assert (tmp_path / "lightning_logs" / "quickstart" / "version_0" / "summary.json").is_file()


def test_photos_alone_are_learned_by_the_recommended_method(tmp_path, monkeypatch, capsys):
    make_photos(tmp_path / "photos", ["ant", "bee", "cow"])
    monkeypatch.chdir(tmp_path)
    small = ["--model.backbone", "pixels:8", "--data.image_size", "8", "--energy.enabled", "false"]
    assert main(["fit", "--data.root", "photos", *small]) == 0
    assert "no --config is given: folder is used" in capsys.readouterr().err
    ran = yaml.safe_load(Path("lightning_logs/default/version_0/config.yaml").read_text())
    model = ran["model"]["init_args"]
    assert model["head"]["class_path"].endswith("RidgeHead")
    assert model["calibrate"] is True
    assert (ran["data"]["classes_per_task"], ran["data"]["source"]) == (3, "folder")


def test_the_first_command_of_the_readme_is_answered_by_the_recommended_method(tmp_path, capsys):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^python -m cifnet_pl (fit --data\.root .*)$", readme, re.MULTILINE)
    photos = str(make_photos(tmp_path, ["ant"], 1))
    words = [photos if word == "PHOTOS" else word for word in command[1].split()]
    assert with_recommended(words)[1:3] == ["--config", str(config_files()["folder"])]
    assert "folder is used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "tasks"),
    [({}, 3), ({"initial_classes": 2}, 10), ({"stream": object()}, 10), ({"classes_per_task": 2}, 2),
     ({"source": "domains"}, 10)],
)  # fmt: skip
def test_a_folder_of_few_classes_is_learned_at_once_unless_tasks_were_planned(options, tasks, tmp_path):
    make_photos(tmp_path, ["ant", "bee", "cow"])
    given = {"source": "folder", "root": str(tmp_path), "classes_per_task": 10, "initial_classes": None, "stream": None}
    data = Namespace(**{**given, **options})
    learn_few_classes_at_once(data)
    assert data.classes_per_task == tasks


def test_options_of_the_papers_head_alone_choose_it():
    only = set(signature(CIFNetHead).parameters) - set(signature(RidgeHead).parameters)
    assert {f"--model.head.{name}" for name in only} <= set(DECIDES)


@pytest.mark.parametrize(
    "words",
    [
        ["fit"],
        ["fit", "--data.root", "p", "--config", "folder"],
        ["fit", "--data.root", "p", "--model.head", "NCMHead"],
        ["fit", "--data.root=p", "--model.buffer", "null"],
        ["fit", "--data.root", "p", "--data.source", "imagenet100"],
        ["validate", "--data.root", "p"],
    ],
)
def test_nothing_is_recommended_to_who_has_chosen(words):
    assert with_recommended(words) == words
