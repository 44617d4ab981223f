"""The layout of the package: how many entries it has, and that imports run one way."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cifnet_pl"


CASES = {
    "": ("", "", ""),  # the package as it is
    "layers": ("utilities/text.py", "from cifnet_pl.heads import Head", "Data flows one way"),
    "top to bottom": ("statistics/sums.py", "import cifnet_pl.cli.parsing", "Data flows one way"),
    "cycle": ("utilities/text.py", "from cifnet_pl.utilities.files import write_text", "No import cycles"),
    "lightning": ("heads/base.py", "import lightning", "know Lightning"),
}
"""Case → module, a line to add to it, and the contract that the line breaks."""

CHECK = """
import json, os, sys
from importlinter.cli import lint_imports

def check(folder):
    os.chdir(folder)
    sys.path.insert(0, folder)
    print(folder, flush=True)
    code = lint_imports(no_cache=True)
    sys.path.remove(folder)
    return code

print(json.dumps([check(folder) for folder in sys.argv[1:]]))
"""


def copy_with(folder: Path, case: str) -> None:
    """Copy the package with its contracts, and the line of the case in it."""
    shutil.copytree(PACKAGE, folder / "cifnet_pl", ignore=shutil.ignore_patterns("__pycache__", "*.js", "*.css"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    module, line, _ = CASES[case]
    if line:
        path = folder / "cifnet_pl" / module
        # An import for type checking only counts too.
        path.write_text(path.read_text() + f"\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {line}\n")
    if case == "cycle":
        other = folder / "cifnet_pl" / "utilities" / "files.py"
        other.write_text(other.read_text() + "\nfrom cifnet_pl.utilities.text import printable\n")


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Case → exit code and output of a check of the import contracts, in a process without the package."""
    folders = [tmp_path_factory.mktemp("copy") for _ in CASES]
    for folder, case in zip(folders, CASES, strict=True):
        copy_with(folder, case)
    arguments = [sys.executable, "-c", CHECK, *map(str, folders)]
    done = subprocess.run(arguments, cwd=folders[0], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *sentence, codes = done.stdout.splitlines()
    starts = [sentence.index(str(folder)) for folder in folders]
    parts = ["\n".join(sentence[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True)]
    return dict(zip(CASES, zip(json.loads(codes), parts, strict=True), strict=True))


def test_the_contracts_hold(checked: dict[str, tuple[int, str]]):
    code, sentence = checked[""]
    assert code == 0, sentence
    assert sentence.count("KEPT") == 3


@pytest.mark.parametrize("case", list(CASES)[1:])
def test_an_import_that_runs_the_wrong_way_is_found(case: str, checked: dict[str, tuple[int, str]]):
    code, sentence = checked[case]
    assert code != 0
    assert any(CASES[case][2] in line and "BROKEN" in line for line in sentence.splitlines()), sentence


def test_the_package_has_at_most_16_entries():
    names = {path.name for path in PACKAGE.iterdir()} - {"__pycache__", "py.typed"}
    assert len(names) <= 16, sorted(names)


def test_a_class_has_at_most_four_of_our_classes_up_to_its_root():
    """Itself included; generic bases count as the class that they are of."""
    bases: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                plain = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
                bases[node.name] = [ast.unparse(base).rpartition(".")[2] for base in plain]

    def depth(name: str) -> int:
        return 1 + max((depth(base) for base in bases[name] if base in bases and base != name), default=0)

    assert {name: depth(name) for name in bases if depth(name) > 4} == {}


def test_each_folder_says_what_it_is_for():
    for path in PACKAGE.rglob("__init__.py"):
        assert path.read_text().startswith('"""'), path


def test_no_module_imports_what_windows_lacks():
    lacking = re.compile(r"^\s*(?:import|from) (?:fcntl|grp|posix|pty|pwd|resource|syslog|termios|tty)\b", re.MULTILINE)
    assert lacking.search("import sys\n    import fcntl\n")
    assert not [path for path in PACKAGE.rglob("*.py") if lacking.search(path.read_text(encoding="utf-8"))]
