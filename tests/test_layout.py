"""The layout of the package: how deep its classes are, their names, and what it imports."""

import ast
import re
from collections import Counter
from functools import cache
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cifnet_pl"


@cache
def classes() -> list[ast.ClassDef]:
    """Return all classes of the package."""
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    nodes = chain.from_iterable(ast.walk(ast.parse(text)) for text in texts)
    return [node for node in nodes if isinstance(node, ast.ClassDef)]


def test_public_class_names_mean_one_thing():
    counts = Counter(node.name for node in classes() if not node.name.startswith("_"))
    assert [name for name, count in counts.items() if count > 1] == []


def test_a_class_has_at_most_four_of_our_classes_up_to_its_root():
    """Itself included; generic bases count as the class that they are of."""
    bases: dict[str, list[str]] = {}
    for node in classes():
        names = [ast.unparse(base).partition("[")[0] for base in node.bases]
        bases[node.name] = [name.rpartition(".")[2] for name in names]

    def depth(name: str) -> int:
        ours = [base for base in bases[name] if base in bases and base != name]
        return 1 + max(map(depth, ours), default=0)

    assert {name: depth(name) for name in bases if depth(name) > 4} == {}


def test_no_module_imports_what_windows_lacks():
    """Functions may, where they have another way on Windows."""
    lacking = re.compile(
        r"^(?:import|from) (?:fcntl|grp|posix|pty|pwd|resource|syslog|termios|tty)\b",
        re.MULTILINE,
    )
    for path in PACKAGE.rglob("*.py"):
        assert not lacking.search(path.read_text(encoding="utf-8")), path
