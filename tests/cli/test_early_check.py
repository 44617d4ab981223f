"""Errors in the options of fit that are found before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from jsonargparse import ArgumentParser
from lightning.pytorch import Trainer

from cifnet_pl.backbones.engines import EngineChoice
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.cli.class_sources import arguments, choices, head_names
from cifnet_pl.cli.commands import RUNS
from cifnet_pl.cli.early_check import GROUPS, SINGLE, check_options, trainer_arguments
from cifnet_pl.cli.lightning_cli import CIFNetCLI, run
from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.heads import HEADS
from cifnet_pl.iterative import METHODS
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.utilities.errors import UsageError

CLASSES = [CIFNetModule, CIFNetDataModule, CalibrationBuffer, *HEADS.values(), *METHODS]


def known_to_the_parser(kind: type) -> set[str]:
    return {name.removeprefix("it.") for name in ArgumentParser().add_class_arguments(kind, "it")}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_the_names_are_those_that_the_parser_knows(kind: type) -> None:
    result = arguments(kind.__name__)
    assert result is not None
    assert set(result) == known_to_the_parser(kind)


def test_the_names_of_the_trainer() -> None:
    assert set(trainer_arguments()) == known_to_the_parser(Trainer)


@pytest.mark.parametrize("command", RUNS)
def test_every_option_of_every_run_is_known(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[str] = []

    def no_run(cli: CIFNetCLI, *_: object) -> None:
        parser = cli._parser(command)
        options.extend(option for action in parser._actions for option in action.option_strings)
        raise SystemExit(0)

    monkeypatch.setattr(CIFNetCLI, "parse_arguments", no_run)
    with pytest.raises(SystemExit):
        run([command])
    first = {option.removeprefix("--").rstrip("+").partition(".")[0] for option in options if option.startswith("--")}
    assert {"model", "data", "experiment"} <= first <= {*GROUPS, *SINGLE}


def test_heads_and_words() -> None:
    assert head_names() == list(HEADS)
    assert choices("cifnet_pl.CIFNetModule", "engine") == get_args(EngineChoice)
    assert choices("PODNetModule", "loss") == ("nca", "softmax")
    assert choices("PODNetModule", "selection") == ("herding", "random")  # of a base class
    assert choices("CIFNetModule", "backbone") is None


def test_classes_of_others_are_not_looked_for() -> None:
    assert arguments("torch.optim.SGD") is None
    assert arguments("NoSuchClass") is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fit", "--model.hed", "X"], "unknown option --model.hed: did you mean --model.head or --model.hashes?"),
        (["fit", "--data.rot=x"], "unknown option --data.rot=x: did you mean --data.root"),
        (["validate", "--config", "quickstart", "--trainer.device", "1"], "did you mean --trainer.devices?"),
        (["fit", "--data.unlike.anything", "1"], "unknown option --data.unlike.anything: --print_config shows all"),
        (["fit", "--config", "quickstart", "--model.hed", "X"], "--model.hed: did you mean --model.head"),
        (["fit", "--config=quickstart", "--model.head.rige", "1"], "did you mean --model.head.ridge"),
        (["fit", "--model.head", "KNNHead", "--model.head.ridge", "1"], "unknown option --model.head.ridge"),
        (["fit", "--model.head.init_args.lambda", "1"], "unknown option --model.head.init_args.lambda"),
        (["fit", "--config", "iterative/der", "--model.exemplar", "1"], "did you mean --model.exemplars"),
        (
            ["fit", "--model", "cifnet_pl.iterative.WAModule", "--model.head", "RidgeHead"],
            "unknown option --model.head",
        ),
        (["fit", "--config", "quickstart", "--model.buffer.capacitty", "9"], "did you mean --model.buffer.capacity?"),
        (["fit", "--config", "quickstrat"], "unknown configuration 'quickstrat': did you mean quickstart?"),
        (["fit", "--model.head", "RigeHead"], "unknown head 'RigeHead': did you mean RidgeHead"),
        (["fit", "--model.engine", "onnx"], "--model.engine is 'onnx', expected one of 'auto', 'torch', 'onnxruntime'"),
        (
            ["fit", "--config", "iterative/podnet", "--model.loss=l1"],
            "--model.loss is 'l1', expected one of 'nca', 'softmax'",
        ),
        (["ftt"], "unknown sub-command 'ftt': did you mean fit"),
        (["fit", "--experimnt", "x"], "unknown option --experimnt: did you mean --experiment?"),
        (["fit", "--modl.head", "X"], "unknown option --modl.head: did you mean --model.head?"),
        (["fit", "--experiment.x", "1"], "unknown option --experiment.x"),
        (["fit", "--config", "quickstart", "--model.engine"], "--model.engine needs a value"),
        (["fit", "--model.engine", "--data.root", "x"], "--model.engine needs a value"),
        (["fit", "--data.batch_size", "abc"], "--data.batch_size is 'abc', expected int"),
        (["fit", "--config", "iterative/der", "--model.auxiliary=a"], "auxiliary is 'a', expected a finite number"),
    ],
)
def test_an_option_that_no_class_has(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        check_options(words)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "--model.head.transform", "l2"],  # of the head that is recommended for folders
        ["fit", "--model", "FineTune", "--model.anything", "1"],
        ["fit", "--model", "mine.Method", "--model.anything", "1"],
        ["fit", "--model.head", "mine.Head", "--model.head.anything", "1"],
        ["fit", "--model.head", "null", "--model.head.anything", "1"],
        ["fit", "--config=OTHER", "--model.anything", "1"],
        ["fit", "--config=BROKEN", "--model.anything", "1"],
        ["fit", "--config=NESTED", "--model.exemplars", "1"],
        ["fit", "--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor", "A_k"],
        ["fit", "--model.hed", "X", "--help"],
        ["fit", "--experiment", "--model"],
        ["fit", "--data.batch_size", "1e2"],
        ["fit", "--data.root", "a.b", "--seed_everything", "1"],
        ["fit", "--data.options.anything", "1"],
        [
            "fit",
            "--config",
            "quickstart",
            "--model.head.class_path",
            "RidgeHead",
            "--model.head.init_args.ridge",
            "gcv",
        ],
    ],
)
def test_what_only_the_parser_can_tell_is_left_to_it(words: list[str], tmp_path: Path) -> None:
    files = {
        "OTHER": "model: {class_path: mine.Method}",
        "BROKEN": "model: [",
        "NESTED": "fit: {model: {class_path: cifnet_pl.iterative.WAModule}}",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    check_options([f"--config={tmp_path / word[9:]}.yaml" if word[9:] in files else word for word in words])


def test_torch_is_not_imported_for_it() -> None:
    code = (
        "import sys; from cifnet_pl.__main__ import main\n"
        "code = main(['fit', '--config', 'quickstart', '--model.hed', 'X'])\n"
        "assert not {'torch', 'lightning'} & set(sys.modules); sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2, result.stderr
    assert result.stderr == "cifnet: error: unknown option --model.hed: did you mean --model.head or --model.hashes?\n"
