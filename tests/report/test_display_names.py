"""Names of methods and settings, as tables show them."""

from __future__ import annotations

import pytest

from cifnet_pl.heads import HEADS
from cifnet_pl.report.settings import METHODS, heading, value_name, words


def test_every_head_has_a_name_of_its_own():
    names = [METHODS[head] for head in HEADS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("key", "value", "name", "cell"),
    [
        ("head.ridge", 0.01, "λ 0.01", "0.01"),
        ("buffer.capacity", 500, "buffer 500", "500"),
        ("head.update_past", False, "locked old neurons", "no"),
        ("head.unheard_of", None, "unheard of none", "none"),
        ("buffer.strategy", "herding", "herding buffer", "herding"),
    ],
)
def test_settings_and_values(key: str, value: object, name: str, cell: str):
    assert words(key, value) == name
    assert value_name(key, value) == cell
    assert heading("head.unheard_of") == "unheard of"
