"""The package uses the words of the field: retired words stand only on the service's page."""

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cifnet_pl"
EVERYDAY_WORDS = PACKAGE / "serving"
"""It speaks to people who know nothing of machine learning."""

TEXT_ENDINGS = {".py", ".yaml", ".txt", ".html", ".css", ".js", ".jinja", ".j2", ".md"}

PHRASES = (
    "named_right",
    "names?_(?:them|it|images?|samples?)_right",
    "held_back",
    "occasions?",
    "vouch(?:es|ed)?",
    "look-?alikes?",
    "twins?",
    "foreign",
    "strangers?",
    "lessons?",
    "teach(?:es|ing)?",
    "photos?",
    "abilit(?:y|ies)",
    "near_cop(?:y|ies)",
    "doubtful",
    "stored_(?:images|photos)",
    "sets?_of_answers",
    "how_sure",
    "these_days",
    "another_day",
    "new_places?",
    "outside_parts?",
    "parts?_of_(?:your|one's)_own",
    "ways_to_score",
    "how_to_score",
    "too_hopeful",
    "hardly_answered",
)
"""Retired words, as regular expressions; ``_`` is a space, an end of a line, a hyphen or itself."""

SPACE = r"(?:[_-]|[\s\"']+)"
RETIRED = re.compile(
    rf"(?<![a-zA-Z])(?i:{'|'.join(PHRASES).replace('_', SPACE)})(?![a-zA-Z])(?! key)"
    r"|(?<=[a-z])(?:Photo|Lesson|Stranger|Occasion|Ability|LookAlike)s?(?![a-z])"
)
"""SQL has foreign keys; names such as NewPhotos hold a retired word too."""


def test_retired_words_are_gone() -> None:
    found = []
    for file in [*PACKAGE.rglob("*"), *(ROOT / "configs").rglob("*")]:
        if file.suffix in TEXT_ENDINGS and EVERYDAY_WORDS not in file.parents:
            text = file.read_text(encoding="utf-8")
            found += [f"{file}: {match[0]}" for match in RETIRED.finditer(text)]
    assert found == []


def test_public_class_names_mean_one_thing() -> None:
    names = [
        node.name
        for file in PACKAGE.rglob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []
