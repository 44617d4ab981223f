"""``configs``: find the package's configurations by name, and the backbone of embeddings."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

from cifnet_pl.utilities.errors import unknown_name
from cifnet_pl.utilities.files import config_files, expanded
from cifnet_pl.utilities.names import DEFAULT_BACKBONE
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
    raise unknown_name("configuration", word, files)


def choose_backbone(config: Any) -> None:
    """Set the backbone to ``none:<width>`` if the data are embeddings; say which one is left out.

    Args:
        config: configuration of ``fit``; ``model.init_args.backbone`` is changed.

    Raises:
        UsageError: the file of embeddings is not given.
        DataError: it cannot be read.
    """
    from cifnet_pl.data.sources.tables import embeddings_width

    model = config.get("model.init_args") or {}
    backbone = model.get("backbone")
    if config.data.source != "embeddings" or backbone is None:
        return
    if backbone != DEFAULT_BACKBONE and backbone.partition(":")[0] != "none":
        print_text(f"note: embeddings need no backbone, {backbone} is left out")
    width = embeddings_width(config.data.root, config.data.options)
    model["backbone"] = f"none:{width}"


def _summary(path: Path) -> str:
    """Return the first sentence of the comment that a configuration begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    text = " ".join(line.removeprefix("#").strip() for line in comment)
    return text.partition(". ")[0].rstrip(".")
