"""The package uses the words of the field: retired words stand only in what the service says.

``python -m tests.test_words [PATH ...]`` prints each retired word with the lines that hold it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cifnet_pl"
CONFIGS = ROOT / "configs"
EVERYDAY_WORDS = (PACKAGE / "serving",)
"""Folders whose files speak to people who know nothing of machine learning."""

TEXT_ENDINGS = {
    ".py",
    ".yaml",
    ".txt",
    ".html",
    ".css",
    ".js",
    ".jinja",
    ".j2",
    ".csv",
    ".md",
}

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

VAGUE_CONSTANTS = {"AT_ONCE", "MOST", "FEW", "NAMED", "KEPT", "LOG", "HERE", "MANY"}
VAGUE_FUNCTIONS = {"of", "note", "take", "give", "kept", "way", "here", "in_words"}
"""Names that do not say what they name; a class method ``of`` makes an object of its class."""


def text_files(paths: list[Path]) -> Iterator[Path]:
    """Yield the text files of folders, but not those that use everyday words."""
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            everyday = any(
                file == part or part in file.parents for part in EVERYDAY_WORDS
            )
            if file.suffix in TEXT_ENDINGS and not everyday:
                yield file


def phrase_places(file: Path) -> Iterator[tuple[str, str]]:
    """Yield each retired phrase of a file with its place; phrases may go on in the next line."""
    text = file.read_text(encoding="utf-8")
    for phrase in PHRASES:
        words = phrase.replace("_", r"(?:[_-]|[\s\"']+)")
        pattern = re.compile(rf"(?<![a-zA-Z]){words}(?![a-z])", re.IGNORECASE)
        for found in pattern.finditer(text):
            if text[found.end() :].lower().startswith(" key"):  # SQL's foreign keys
                continue
            line = text.count("\n", 0, found.start()) + 1
            yield phrase, f"{file}:{line}: {text.splitlines()[line - 1].strip()}"
    for phrase in ("Photo", "Lesson", "Stranger", "Occasion", "Ability", "LookAlike"):
        for found in re.finditer(rf"(?<=[a-z]){phrase}s?(?![a-z])", text):  # NewPhotos
            line = text.count("\n", 0, found.start()) + 1
            yield phrase, f"{file}:{line}: {found[0]}"


def vague_name_places(file: Path) -> Iterator[tuple[str, str]]:
    """Yield each vague name that a Python file defines, with its place."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        place = f"{file}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_class_method = "classmethod" in map(ast.unparse, node.decorator_list)
            vague = node.name in VAGUE_FUNCTIONS and not is_class_method
            if vague or re.match(r"_?about_", node.name):
                yield node.name, place
        is_stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        if is_stored and node.id in VAGUE_CONSTANTS:
            yield node.id, place


def places_of_retired_words(paths: list[Path]) -> dict[str, list[str]]:
    """Return each retired word that occurs with its places."""
    places = defaultdict(list)
    for file in text_files(paths):
        found = list(phrase_places(file))
        if file.suffix == ".py":
            found += vague_name_places(file)
        for word, place in found:
            places[word].append(place)
    return places


def public_classes() -> Iterator[tuple[str, Path]]:
    """Yield the name and file of each public class at the top of a module."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, file


def test_retired_words_are_gone() -> None:
    places = places_of_retired_words([PACKAGE, CONFIGS])

    counts = {word: len(found) for word, found in places.items()}
    assert counts == {}


def test_public_class_names_mean_one_thing() -> None:
    counts = Counter(name for name, _ in public_classes())

    assert [name for name, count in counts.items() if count > 1] == []


def main(arguments: list[str]) -> None:
    """Print the retired words below some paths, and classes that share a name."""
    paths = [Path(argument).resolve() for argument in arguments]
    places = places_of_retired_words(paths or [PACKAGE, CONFIGS])
    for word, found in sorted(places.items()):
        print(f"{word}: {len(found)}")
        for place in found:
            print(f"    {place.removeprefix(f'{ROOT}/')}")
    print(f"retired words: {sum(map(len, places.values()))}")
    files = defaultdict(list)
    for name, file in public_classes():
        files[name].append(str(file.relative_to(ROOT)))
    for name, homes in files.items():
        if len(homes) > 1:
            print(f"class {name} is defined {len(homes)} times: {', '.join(homes)}")


if __name__ == "__main__":
    main(sys.argv[1:])
