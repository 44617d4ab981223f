"""``configs``: list the package's configurations."""

from itertools import takewhile

from cifnet_pl.utilities.files import config_files
from cifnet_pl.utilities.text import print_text


def configs() -> None:
    """List the configurations of the package; --config takes their names."""
    files = config_files()
    width = max(map(len, files))
    for name, path in files.items():
        # The first sentence of the comment that it begins with.
        content = path.read_text(encoding="utf-8")
        comment = takewhile(lambda line: line.startswith("#"), content.splitlines())
        text = " ".join(line.removeprefix("#").strip() for line in comment)
        summary = text.partition(". ")[0].rstrip(".")
        print_text(f"{name:<{width}}  {summary}")
    print_text(
        "\nuse: cifnet fit --config NAME; those of paper/ and sweeps/ are for cifnet sweep NAME"
    )
