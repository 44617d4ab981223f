"""``configs``: find the package's configurations by name, and the default of ``fit``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cifnet_pl.utilities.errors import UsageError, unknown_name
from cifnet_pl.utilities.files import RECOMMENDED, config_files, expanded
from cifnet_pl.utilities.text import print_text

METHOD_OPTIONS = (
    "--config",
    "-c",
    "--model",
    "--model.head",
    "--model.buffer",
    "--model.calibrate",
    "--model.head.update_past",  # only CIFNetHead has this one and the next
    "--model.head.weighting",
    "--data.source",
)
"""Options of ``fit`` that choose the method or the data; with them nothing is recommended."""


def configs() -> None:
    """List the configurations of the package; --config takes their names."""
    files = config_files()
    width = max(map(len, files))
    for name, path in files.items():
        print_text(f"{name:<{width}}  {_summary(path)}")
    print_text(
        "\nuse: cifnet fit --config NAME; those of paper/ and sweeps/ are for cifnet sweep NAME"
    )


def find_config(word: str) -> Path:
    """Return the file that is meant by a path or the name of a configuration of the package.

    Raises:
        UsageError: neither exists; lists the nearest names.
    """
    path = expanded(word)
    files = config_files()
    if path.is_file():
        return path
    if word in files:
        return files[word]
    if path.suffix in (".yaml", ".yml"):
        raise UsageError(
            f"configuration file {word} does not exist (cifnet configs lists those of the package)"
        )
    raise unknown_name("configuration", word, files)


def with_recommended(args: Sequence[str]) -> list[str]:
    """Add the recommended configuration to ``fit --data.root IMAGES``; return others as they are.

    Args:
        args: arguments of the command line.
    """
    keys = {arg.partition("=")[0] for arg in args}
    if (
        not args
        or args[0] != "fit"
        or "--data.root" not in keys
        or keys & set(METHOD_OPTIONS)
    ):
        return list(args)
    path = config_files()[RECOMMENDED]
    print_text(
        f'cifnet: using the configuration "{RECOMMENDED}" (cifnet configs lists others)',
        sys.stderr,
    )
    return ["fit", "--config", str(path), "--experiment", "default", *args[1:]]


def _summary(path: Path) -> str:
    """Return the first sentence of the comment that a configuration begins with."""
    text: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text += line.removeprefix("#").split()
    return " ".join(text).partition(". ")[0].rstrip(".")
