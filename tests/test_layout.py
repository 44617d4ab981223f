"""The layout of the package: how deep its classes are, their names, and what it imports."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cifnet_pl"


@cache
def classes() -> list[ast.ClassDef]:
    """Return all classes of the package."""
    return [
        node
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]


def test_public_class_names_mean_one_thing():
    counts = Counter(node.name for node in classes() if not node.name.startswith("_"))
    assert [name for name, count in counts.items() if count > 1] == []


def test_a_class_has_at_most_four_of_our_classes_up_to_its_root():
    """Itself included; generic bases count as the class that they are of."""
    bases: dict[str, list[str]] = {}
    for node in classes():
        plain = (
            base.value if isinstance(base, ast.Subscript) else base
            for base in node.bases
        )
        bases[node.name] = [ast.unparse(base).rpartition(".")[2] for base in plain]

    def depth(name: str) -> int:
        return 1 + max(
            (depth(base) for base in bases[name] if base in bases and base != name),
            default=0,
        )

    assert {name: depth(name) for name in bases if depth(name) > 4} == {}


def test_no_module_imports_what_windows_lacks():
    """Functions may, where they have another way on Windows."""
    lacking = re.compile(
        r"^(?:import|from) (?:fcntl|grp|posix|pty|pwd|resource|syslog|termios|tty)\b",
        re.MULTILINE,
    )
    assert not [
        path
        for path in PACKAGE.rglob("*.py")
        if lacking.search(path.read_text(encoding="utf-8"))
    ]
