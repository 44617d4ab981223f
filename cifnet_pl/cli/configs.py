"""``configs``: find the configurations that come with the package by name, and the one that ``fit`` uses by default."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import cifnet_pl
from cifnet_pl.utilities.errors import UsageError, unknown_name

RECOMMENDED = "heads/ridge"
"""The configuration of ``fit --data.root PHOTOS`` alone: the exact head, calibrated with a small buffer."""

PER_TASK = 10
"""Classes per task where nothing is said; all at once where there are fewer."""

DECIDES = ("--config", "-c", "--model", "--model.head", "--model.buffer", "--model.calibrate", "--data.source")
"""Options of ``fit`` by which the user chooses the method or the data: then nothing is recommended."""

PAPER_ONLY = tuple(f"--model.head.{name}" for name in ("update_past", "weighting"))
"""Options of ``CIFNetHead``, the head of a run without any configuration, that the recommended head does not have."""


def configs() -> None:
    """List the configurations that come with the package: --config takes their names."""
    files = config_files()
    width = max(map(len, files))
    for name, path in files.items():
        print(f"{name:<{width}}  {_summary(path)}")
    print("\nuse: cifnet fit --config NAME; those of paper/ and sweeps/ are for cifnet sweep NAME")


def config_files() -> dict[str, Path]:
    """Return the file of each configuration by its name, such as ``heads/ridge``; the top folder comes first."""
    package = Path(cifnet_pl.__file__).parent
    folder = package / "configs"
    if not folder.is_dir():  # a checkout, not an installation
        folder = package.parent / "configs"
    names = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")}
    return {name: names[name] for name in sorted(names, key=lambda name: (name.count("/"), name))}


def find_config(word: str) -> Path:
    """Return the file that is meant by a path or the name of a configuration of the package.

    Raises:
        UsageError: neither exists; lists the nearest names.
    """
    path, files = Path(word).expanduser(), config_files()
    if path.is_file():
        return path
    if word in files:
        return files[word]
    if path.suffix in (".yaml", ".yml"):
        raise UsageError(f"configuration file {word} does not exist (cifnet configs lists those of the package)")
    raise unknown_name("configuration", word, files)


def with_named_configs(args: Sequence[str]) -> list[str]:
    """Replace the name after every ``--config`` by its file.

    Args:
        args: arguments of the command line.
    """
    result: list[str] = []
    for i, arg in enumerate(args):
        key, equals, value = arg.partition("=")
        if key in ("--config", "-c") and equals:
            result.append(f"{key}={find_config(value)}")
        elif i and args[i - 1] in ("--config", "-c"):
            result.append(str(find_config(arg)))
        else:
            result.append(arg)
    return result


def with_recommended(args: Sequence[str]) -> list[str]:
    """Add the configuration for photos to ``fit --data.root PHOTOS``; return other arguments as they are.

    Args:
        args: arguments of the command line.

    Raises:
        DataError: there are no photos.
    """
    keys = {arg.partition("=")[0] for arg in args}
    if not args or args[0] != "fit" or "--data.root" not in keys or keys & set(DECIDES):
        return list(args)
    of_paper = sorted(keys & set(PAPER_ONLY))
    if of_paper:
        news = f"cifnet: {of_paper[0]} is an option of CIFNetHead, so that is used; --model.head NAME chooses another"
        print(news, file=sys.stderr)
        return list(args)
    chosen = ["--config", str(config_files()[RECOMMENDED]), "--experiment", "default"]
    if not keys & {"--data.classes_per_task", "--data.initial_classes", "-h", "--help", "--print_config"}:
        chosen += ["--data.classes_per_task", str(_per_task(args))]
    print(
        f"cifnet: no --config is given: {RECOMMENDED} is used ({_summary(config_files()[RECOMMENDED])})",
        file=sys.stderr,
    )
    return ["fit", *chosen, *args[1:]]


def _per_task(args: Sequence[str]) -> int:
    from cifnet_pl.data.image_sets import SourceOptions
    from cifnet_pl.data.sources import build_source

    roots = [
        value if equals else following
        for arg, following in zip(args, [*args[1:], ""], strict=True)
        for key, equals, value in [arg.partition("=")]
        if key == "--data.root"
    ]
    return min(PER_TASK, len(build_source("folder", SourceOptions(Path(roots[-1]))).class_names))


def _summary(path: Path) -> str:
    """Return the first sentence of the comment that a configuration begins with."""
    text: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text += line.removeprefix("#").split()
    return " ".join(text).partition(". ")[0].rstrip(".")
