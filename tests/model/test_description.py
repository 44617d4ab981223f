"""A description from a file is checked strictly: types, names and format."""

from __future__ import annotations

from typing import Any

import pytest

from cifnet_pl.model.bundle import FORMAT, Description, check_format, class_names, parse, shown
from cifnet_pl.utilities.errors import CheckpointError
from tests.models import learned


def described(**changes: Any) -> dict[str, Any]:
    return {**learned("cifnet").describe(), **changes}


def test_what_a_model_says_of_itself_can_be_read():
    about = parse(Description, described(), "the file")
    assert about.class_names == ["ant", "bee", "cat", "dog", "elk", "fox"]
    assert about.task_sizes == [2, 1, 3]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([], "its description is not a table"),
        ({}, "it has no "),
        (described(task_sizes=[2, 1.0, 3]), r"task_sizes.1 is '1.0', expected"),
        (described(task_sizes=[2, True, 3]), r"task_sizes.1 is 'True', expected"),
        (described(images={"image_size": 0, "crop_ratio": 1.0, "held_back": None}), r"images.image_size is '0'"),
        (described(precision=16), r"precision is '16', expected"),
        (described(engines=["torch", "torch"]), "engines"),
    ],
)
def test_other_types_are_refused(content: Any, sentence: str):
    with pytest.raises(CheckpointError, match=sentence):
        parse(Description, content, "the file")


@pytest.mark.parametrize("names", [[], ["ant", "ant"], ["a\nb"], ["../ant"], [""], [1]])
def test_names_that_are_not_safe_are_refused(names: list[Any]):
    with pytest.raises(CheckpointError, match="the file"):
        class_names(names, "the file")


def test_formats_of_other_versions_are_refused():
    check_format(FORMAT, "the file")
    for number in (FORMAT + 1, str(FORMAT), True, None):
        with pytest.raises(CheckpointError, match="the file has format"):
            check_format(number, "the file")


def test_values_are_shown_short_and_on_one_line():
    assert shown("a\nb" + 100 * "c") == "'a\\nb" + 57 * "c" + "'"
