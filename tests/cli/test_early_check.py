"""Errors in the options of fit that are found before torch is imported."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from lightning.pytorch import Trainer

from cifnet_pl.cli.early_check import SOURCES, arguments, check_options
from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.utilities.errors import UsageError


@pytest.mark.parametrize("group", SOURCES)
def test_the_names_are_those_of_the_constructor(group: str) -> None:
    kind = {"model": CIFNetModule, "data": CIFNetDataModule, "trainer": Trainer}[group]
    assert arguments(*SOURCES[group]) == [name for name in inspect.signature(kind).parameters if name != "self"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fit", "--model.hed", "X"], "unknown option --model.hed: did you mean --model.head or --model.hashes?"),
        (["fit", "--data.rot=x"], "unknown option --data.rot=x: did you mean --data.root"),
        (["validate", "--config", "quickstart", "--trainer.device", "1"], "did you mean --trainer.devices?"),
        (["fit", "--data.unlike.anything", "1"], "unknown option --data.unlike.anything: --print_config shows all"),
    ],
)
def test_an_option_that_no_class_has(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        check_options(words)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "--model.head.lambda", "1"],
        ["fit", "--model", "FineTune", "--model.anything", "1"],
        ["fit", "--config=mine.yaml", "--model.anything", "1"],
        ["fit", "--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor", "A_k"],
        ["fit", "--model.hed", "X", "--help"],
        ["fit", "--experiment", "--model"],
        ["fit", "--data.root", "a.b", "--seed_everything", "1"],
    ],
)
def test_what_only_the_parser_can_tell_is_left_to_it(words: list[str]) -> None:
    check_options(words)


def test_torch_is_not_imported_for_it() -> None:
    code = (
        "import sys; from cifnet_pl.__main__ import main; code = main(['fit', '--model.hed', 'X'])\n"
        "assert not {'torch', 'lightning'} & set(sys.modules); sys.exit(code)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 2, found.stderr
    assert found.stderr == "cifnet: error: unknown option --model.hed: did you mean --model.head or --model.hashes?\n"
