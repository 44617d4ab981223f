"""Small faults, drawn at random, and whether the tests catch them.

``python -m benchmarks.mutations RESULTS --checkout OLD --other NEW --label before`` draws faults
that both checkouts can have, and runs the tests of OLD on OLD with each of them: first those of the
module, then all of its folder. With OLD and NEW exchanged and another label it judges the tests of
NEW by the same faults. Each result is a line of JSON in the file RESULTS; a call with the same file
goes on where the last one stopped, and ``--show`` prints the labels side by side.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("heads", "statistics", "buffer", "model", "data", "learning", "report")
UNMARKED = "not soak and not scale and not system"
PRELOADED = (
    "lightning.pytorch.cli",
    "torchmetrics",
    "sklearn.linear_model",
    "pandas",
    "hypothesis",
)
"""Packages that every run of tests imports: the runs are forked from a process that has them."""

FAILED = (1, 2)
"""Exit codes of pytest where a test failed, or could not be imported."""

OPPOSITES: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Fault:
    """A change of one expression or statement.

    Attributes:
        file: relative to the checkout.
        text: its first line, with the column, by which it is found in another checkout.
        start: byte at which the replaced text begins.
        end: byte after it.
        line: number of its first line, from 1.
        before: the text.
        after: what stands there instead.
    """

    file: str
    text: str
    start: int
    end: int
    line: int
    before: str
    after: str

    @property
    def key(self) -> tuple[str, ...]:
        """What a fault has in common with the same one in another checkout."""
        return (self.file, self.text, self.before, self.after)

    def applied(self, source: bytes) -> bytes:
        """Return the module with the fault in it."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def changed(node: ast.AST) -> ast.AST | None:
    """Return a small change of an expression or statement; None where there is none."""
    other = copy.deepcopy(node)
    match other:
        case ast.Compare(ops=[operator]) if type(operator) in OPPOSITES:
            other.ops = [OPPOSITES[type(operator)]()]
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if (
            type(operator) in OPPOSITES
        ):
            other.op = OPPOSITES[type(operator)]()
        case ast.UnaryOp(op=ast.Not()):
            return other.operand
        case ast.Constant(value=bool() as value):
            other.value = not value
        case ast.Constant(value=int() | float() as value):
            other.value = value + 1
        case ast.Return(value=ast.expr()):
            other.value = ast.Constant(None)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            return ast.Pass()
        case _:
            return None
    return other


def mutable(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through a module, but not into annotations, decorators, imports and messages."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        children = value if isinstance(value, list) else [value]
        for child in children:
            skipped = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)
            if isinstance(child, ast.AST) and not isinstance(child, skipped):
                yield from mutable(child)


def faults_of(path: Path, file: str) -> Iterator[Fault]:
    """Return every fault that can be made in a module; ``file`` is its name in the checkout."""
    source = path.read_bytes()
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    for node in mutable(ast.parse(source)):
        other = changed(node)
        if other is None or not isinstance(node, ast.expr | ast.stmt):
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        after = ast.unparse(other)
        if isinstance(other, ast.expr):
            after = f"({after})"
        before = source[start:end].decode()
        text = f"{node.col_offset}: {lines[node.lineno - 1].decode().strip()}"
        yield Fault(file, text, start, end, node.lineno, before, after)


def all_faults(checkout: Path) -> dict[tuple[str, ...], Fault]:
    """Return all faults of the package by their keys, without those that share a key."""
    found: dict[tuple[str, ...], list[Fault]] = defaultdict(list)
    for room in ROOMS:
        for path in sorted((checkout / "cifnet_pl" / room).rglob("*.py")):
            for fault in faults_of(path, path.relative_to(checkout).as_posix()):
                found[fault.key].append(fault)
    return {key: same[0] for key, same in found.items() if len(same) == 1}


def drawn(checkout: Path, other: Path, count: int, seed: int) -> list[Fault]:
    """Draw faults of a checkout from those that another one can have, too."""
    ours = all_faults(checkout)
    common = sorted(ours.keys() & all_faults(other).keys())
    return [ours[key] for key in random.Random(seed).sample(common, count)]


def tests_of(file: str, tests: Path) -> list[str]:
    """Return what covers a module, the most likely to catch a fault first.

    Args:
        file: of the module, relative to the checkout.
        tests: the checkout.
    """
    inner = Path(file).relative_to("cifnet_pl")
    mirrored = Path("tests") / inner.with_name(f"test_{inner.name}")
    places = [
        mirrored,
        Path("tests") / inner.parts[0],
        Path(f"tests/test_{inner.parts[0]}.py"),
    ]
    return [place.as_posix() for place in places if (tests / place).exists()]


@dataclass(frozen=True)
class Run:
    """What tests said of a fault.

    Attributes:
        code: exit code of pytest; None where it was ended after the timeout.
        failed: the tests that failed.
    """

    code: int | None
    failed: list[str]


class Failures:
    """A plug-in of pytest that writes down which tests fail, or cannot be collected."""

    def __init__(self, file: Path):
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(report.nodeid + "\n")


def run_tests(
    folder: Path, places: list[str], deselected: list[str], timeout: float
) -> Run:
    """Run tests in a process of their own until one fails."""
    failures = folder / "failures.txt"
    failures.unlink(missing_ok=True)
    for compiled in (folder / "cifnet_pl").rglob(
        "*.pyc"
    ):  # it may be of the same second
        compiled.unlink()
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", UNMARKED]
    for name in deselected:
        options.append(f"--deselect={name}" if "::" in name else f"--ignore={name}")
    process = multiprocessing.get_context("fork").Process(
        target=_pytest, args=(folder, [*options, *places], failures)
    )
    process.start()
    process.join(timeout)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    failed = (
        failures.read_text(encoding="utf-8").splitlines() if failures.exists() else []
    )
    return Run(code, failed)


def _pytest(folder: Path, words: list[str], failures: Path) -> None:
    os.setpgrp()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)
    for name in list(sys.modules):  # those of this checkout
        if name.partition(".")[0] in ("benchmarks", "cifnet_pl"):
            del sys.modules[name]
    if Path(importlib.import_module("cifnet_pl").__file__ or "").parents[1] != folder:
        raise RuntimeError(f"the package does not come from {folder}")
    with open(folder / "output.txt", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os._exit(pytest.main(words, plugins=[Failures(failures)]))


def workplace(checkout: Path, folder: Path) -> None:
    """Copy the package and the tests of a checkout, and link to all else."""
    without = shutil.ignore_patterns("__pycache__")
    for path in checkout.iterdir():
        if path.name in ("cifnet_pl", "tests"):
            shutil.copytree(path, folder / path.name, ignore=without)
        elif path.name not in (".git", ".venv", "lightning_logs", "build"):
            (folder / path.name).symlink_to(path)


def judged(fault: Fault, folder: Path, broken: list[str], timeout: float) -> Run:
    """Run the tests of a fault; those that fail without it, too, are added to ``broken``."""
    module = folder / fault.file
    whole = module.read_bytes()
    places = tests_of(fault.file, folder)
    while True:
        module.write_bytes(fault.applied(whole))
        try:
            run = run_tests(folder, places, broken, timeout)
        finally:
            module.write_bytes(whole)
        if run.code not in FAILED:
            return run
        alone = run_tests(folder, run.failed, broken, timeout)
        if alone.code not in FAILED:
            return run
        broken += alone.failed


def results(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def show(file: Path) -> None:
    """Print the faults of a file, and by which tests each was caught."""
    labels = sorted({row["label"] for row in results(file)})
    by_fault: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for row in results(file):
        key = (row["file"], row["text"], row["before"], row["after"])
        by_fault.setdefault(key, {})[row["label"]] = row
    for (name, text, before, after), rows in by_fault.items():
        said = ", ".join(
            f"{label}: {'caught' if rows[label]['caught'] else 'MISSED'}"
            for label in rows
        )
        print(
            f"{name}, {text}: {before.splitlines()[0]} → {after.splitlines()[0]}: {said}"
        )
    in_all = [rows for rows in by_fault.values() if len(rows) == len(labels)]
    for label in labels:
        caught = sum(rows[label]["caught"] for rows in in_all)
        print(f"{label}: {caught} of {len(in_all)} caught")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("--other", type=Path, default=ROOT)
    parser.add_argument("--label", default="tests")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    if given.show:
        show(given.results)
        return
    checkout = given.checkout.resolve()
    for name in PRELOADED:
        importlib.import_module(name)
    done = {(row["number"], row["label"]) for row in results(given.results)}
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        workplace(checkout, folder)
        faults = drawn(checkout, given.other.resolve(), given.count, given.seed)
        for number, fault in enumerate(faults):
            if (number, given.label) in done:
                continue
            begun = time.monotonic()
            run = judged(fault, folder, broken, given.timeout)
            row = {"number": number, "label": given.label, **asdict(fault)}
            row |= {"caught": run.code != 0, "code": run.code, "by": run.failed}
            row["seconds"] = round(time.monotonic() - begun)
            with given.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(
                f"{number}: {fault.file}:{fault.line}: {'caught' if run.code else 'missed'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
