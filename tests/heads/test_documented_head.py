"""The head that docs/adding_a_head.md writes passes the shared suite, as the page says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cifnet_pl.heads import Head
from tests.heads import test_suite
from tests.heads.suite import WIDTH, Case, learn

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_head.md"


@pytest.fixture(scope="module")
def documented() -> type[Head]:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[0]
    names: dict[str, Any] = {"__name__": "documented"}
    exec(compile(code, str(PAGE), "exec"), names)
    found = [v for v in names.values() if isinstance(v, type) and v.__module__ == "documented"]
    assert len(found) == 1
    return found[0]


PARAMETERS = {"case", "learned"}
ALL: list[Callable[..., None]] = [
    test
    for name, test in vars(test_suite).items()
    if name.startswith("test_") and set(inspect.signature(test).parameters) <= PARAMETERS
]


@pytest.mark.parametrize("test", ALL, ids=lambda test: test.__name__)
def test_the_shared_suite(test: Callable[..., None], documented: type[Head]) -> None:
    case = Case(lambda d: documented(d))  # type: ignore[call-arg]
    wanted = inspect.signature(test).parameters
    given: dict[str, Any] = {"case": case, "learned": learn(case.make(WIDTH), test_suite.TASKS)}
    test(**{name: given[name] for name in wanted})


def test_the_suite_was_found() -> None:
    assert len(ALL) > 30
