"""Every relative link of README, CHANGELOG and the documentation leads to a file and a heading."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "lightning_logs/README.md",
)
PAGES = [ROOT / name for name in TOP if (ROOT / name).exists()]
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
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S
    )
    found = set(re.findall(r"(?:id|name)=\"([^\"]+)\"", text))
    found |= set(re.findall(r"\{#([\w-]+)\}", text))
    for heading in re.findall(r"^#+ +(.*?)(?: *\{#.*\})? *$", text, flags=re.MULTILINE):
        plain = (
            re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        )
        words = re.sub(r"[^\w\s-]", "", plain).strip()
        found.add(re.sub(r"\s", "-", words))
        found.add(re.sub(r"[-\s]+", "-", words))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists():
            broken.append(target)
            continue
        has_anchor = not anchor or file.suffix != ".md" or anchor in anchors(file)
        if not has_anchor:
            broken.append(target)
    assert broken == []
