"""The version, and what the documentation says of heads and options, are those of the code."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cifnet_pl import __version__, heads
from cifnet_pl.cli.commands import TRAINER_COMMANDS

ROOT = Path(__file__).parents[1]


def test_version_stands_in_all_places():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert citation["version"] == __version__
    assert re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)[0] == __version__


def test_the_workflow_fits_its_schema():
    check = pytest.importorskip("check_jsonschema")
    path = str(ROOT / ".github/workflows/ci.yml")
    with pytest.raises(SystemExit) as ended:
        check.main(["--builtin-schema", "vendor.github-workflows", path])
    assert ended.value.code == 0


def test_the_table_of_heads_is_that_of_the_code():
    page = (ROOT / "docs/how_to/extend.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+Head)` \|(.*)\|$", page, re.MULTILINE)
    assert {name for name, _ in rows} == set(heads.HEADS)
    for name, cells in rows:
        head = heads.HEADS[name](8)
        can = [head.merges, head.subtracts or name == "KNNHead", head.reduces]
        can += [head.leaves_one_out, head.tells_novelty]
        shown = [cell.strip() == "yes" for cell in cells.split("|")]
        assert shown == can, name


def test_the_command_line_reference_is_that_of_the_parsers():
    made = runpy.run_path(str(ROOT / ".ci/command_line.py"))["page"]()
    page = (ROOT / "docs/reference/command_line.md").read_text(encoding="utf-8")
    # Without types, whose order depends on what was imported.
    words, stored = (
        re.sub(r"\(type:.*?\)", "", text, flags=re.DOTALL).split()
        for text in (made, page)
    )
    assert words == stored, "run python .ci/command_line.py"


def option_names(text: str) -> set[str]:
    """Return all long options that stand in a text."""
    return set(re.findall(r"(?<![\w-])--([a-zA-Z_]\w*(?:\.\w+)*)", text))


def documented_commands() -> Iterator[tuple[str, str]]:
    """Return each ``cifnet`` command line of the documentation with its page."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(
            r"^\s*(?:timeout \w+ |srun .* )?(cifnet \w.*)$", text, re.MULTILINE
        ):
            if page.name != "command_line.md":
                yield page.name, line.split("  #")[0].split(";")[0]


def test_every_documented_option_exists():
    """Runs take the options of all classes: only the first two parts of those are looked up."""
    reference = (ROOT / "docs/reference/command_line.md").read_text(encoding="utf-8")
    sections = dict(
        re.findall(
            r"^## `cifnet (\w+)`\n(.*?)(?=^## )", reference + "\n## ", re.M | re.S
        )
    )
    everywhere = option_names(reference)
    trained = {"model.exemplars", "model.epochs", "model.preset"}
    commands = list(documented_commands())
    assert len(commands) > 80
    for page, line in commands:
        command = line.split()[1]
        of_runs = set()
        if command in (*TRAINER_COMMANDS, "sweep", "sums"):
            of_runs = everywhere | trained
        for option in option_names(line):
            first_parts = ".".join(option.split(".")[:2])
            exists = option in option_names(sections[command]) or first_parts in of_runs
            of_a_method = option.startswith("model.") and re.search(
                "iterative|paper/", line
            )
            of_lightning_or_a_method = option.startswith("trainer.") or of_a_method
            assert exists or (of_runs and of_lightning_or_a_method), (page, line)
