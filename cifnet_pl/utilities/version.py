"""The version of this package, installed or in a clone of its source."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGE = "cifnet_pl"

UNKNOWN_VERSION = "0+unknown"
"""Version of source code without its project file."""


@cache
def package_version(root: Path = Path(__file__).parents[2]) -> str:
    """Return the version of this package.

    Args:
        root: folder of ``pyproject.toml``, which is read where the package is not installed.
    """
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        pass
    try:
        text = (root / "pyproject.toml").read_text(encoding="utf-8")
    except OSError:
        return UNKNOWN_VERSION
    match = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    if match:
        return match[1]
    return UNKNOWN_VERSION


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the version of each of some installed packages, this one included."""
    found = {}
    for name in packages:
        if name == PACKAGE:
            found[name] = package_version()
        else:
            found[name] = version(name)
    return found
