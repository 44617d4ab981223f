"""What README and documentation say is so: the version, heads, options, links and commands."""

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cifnet_pl import __version__, heads
from cifnet_pl.__main__ import main
from cifnet_pl.cli.commands import TRAINER_COMMANDS

ROOT = Path(__file__).parents[1]
COMMAND = r"^\s*(?:timeout \w+ |srun .* )?(cifnet \w.*)$"


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
        for line in re.findall(COMMAND, text, re.MULTILINE):
            if page.name != "command_line.md":
                yield page.name, line.split("  #")[0].split(";")[0]


def test_every_documented_option_exists():
    """Runs take the options of all classes: only the first two parts of those are looked up."""
    reference = (ROOT / "docs/reference/command_line.md").read_text(encoding="utf-8")
    section = r"^## `cifnet (\w+)`\n(.*?)(?=^## )"
    sections = dict(re.findall(section, reference + "\n## ", re.M | re.S))
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


# ---------------------------------------------------------------------- links

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("lightning_logs/README.md")])
PAGES += sorted((ROOT / "docs").rglob("*.md"))
PAGES += sorted((ROOT / "benchmarks").glob("*.md"))
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|(?:src|href)=\"([^\"]+)\"")
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """Return the targets of all links and images of a page that are not on the web."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    targets = [first or second for first, second in LINK.findall(text)]
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs form them."""
    whole = page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", whole, flags=re.M | re.S)
    found = set(re.findall(r"(?:id|name)=\"([^\"]+)\"", text))
    found |= set(re.findall(r"\{#([\w-]+)\}", text))
    for heading in re.findall(r"^#+ +(.*?)(?: *\{#.*\})? *$", text, flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        words = re.sub(r"[^\w\s-]", "", plain).strip()
        found.add(re.sub(r"\s", "-", words))
        found.add(re.sub(r"[-\s]+", "-", words))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), target


# ---------------------------------------------------------------------- commands of the README

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
SHELL = [code for language, code in BLOCKS if not language and "│" not in code]
LINES = [line.split("  #")[0].rstrip() for line in "".join(SHELL).splitlines()]
COMMAND_LINES = [line for line in LINES if line.startswith("cifnet ")]
SMALL = "--model.backbone pixels:8 --data.image_size 8 --energy.enabled false"


@pytest.mark.system
def test_the_commands_run(cwd: Path):
    """In their order, in an empty folder, with digits as images and their pixels as embeddings."""
    assert main(["unpack", "--source", "digits", "--output", "all"]) == 0
    for name, digits in (("IMAGES", "012"), ("NEW", "3"), ("HOLIDAY", "0")):
        for digit in digits:
            source = cwd / "all" / "train" / digit
            (cwd / name).mkdir(exist_ok=True)
            (cwd / name / digit).symlink_to(source)
    variables = dict(re.findall(r'^(\w+)="(.*)"$', "\n".join(LINES), re.MULTILINE))
    for line in COMMAND_LINES:
        for name, value in variables.items():
            line = line.replace(f"${name}", value)
        words = shlex.split(line)[1:]
        if words[0] == "fit":
            words += SMALL.split()
        if words[0] == "sweep":
            words += ["--dry_run", "true"]
        assert main(words) == 0, line
    assert (cwd / "predictions.csv").is_file()
    assert (cwd / "gallery.png").is_file()
    assert (cwd / "lightning_logs/quickstart/version_0/trajectory.png").is_file()
    assert (cwd / "report/report.html").is_file()


def test_the_python_runs(capsys: pytest.CaptureFixture[str]):
    (code,) = PYTHON
    exec(code, {})
    assert "[3, 7, 1, 4, 8]" in capsys.readouterr().out
    assert len([line for line in code.strip().splitlines() if line]) <= 11
