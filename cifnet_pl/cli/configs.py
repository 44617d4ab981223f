"""``configs``: list the package's configurations."""

from itertools import takewhile
from pathlib import Path

from cifnet_pl.utilities.files import config_files
from cifnet_pl.utilities.text import print_text


def configs() -> None:
    """List the configurations of the package; --config takes their names."""
    files = config_files()
    width = max(map(len, files))
    for name, path in files.items():
        print_text(f"{name:<{width}}  {_summary(path)}")
    print_text(
        "\nuse: cifnet fit --config NAME; those of paper/ and sweeps/ are for cifnet sweep NAME"
    )


def _summary(path: Path) -> str:
    """Return the first sentence of the comment that a configuration begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    text = " ".join(line.removeprefix("#").strip() for line in comment)
    return text.partition(". ")[0].rstrip(".")
