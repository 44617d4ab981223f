"""Find options of ``fit`` and other runs that do not exist, before Lightning and torch are imported.

The names are read from the source of the classes that the options are arguments of, without running it. What these
names do not decide is left to the parser.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cifnet_pl.cli.class_sources import arguments, choices, class_arguments, head_names, plain_type
from cifnet_pl.cli.commands import COMMANDS, RUNS
from cifnet_pl.cli.configs import with_named_configs
from cifnet_pl.utilities.errors import CifnetError, UsageError, unknown_name

TRAINER = ("lightning", "pytorch/trainer/trainer.py", "Trainer")
"""Package, file and class of the options ``--trainer.…``."""

NESTED = ("model.head", "model.buffer")
"""Options of the model that are classes with options of their own."""

DEFAULTS = {
    "model": ["CIFNetModule"],
    "data": ["CIFNetDataModule"],
    "model.head": ["CIFNetHead", "RidgeHead"],  # the second is recommended for folders of photos
    "model.buffer": ["CalibrationBuffer"],
}
"""Group of options → classes, of which one has them where nothing else is chosen."""

GROUPS = ("model", "data", "trainer", "optimizer", "lr_scheduler", "energy", "predictions", "checkpoint")
"""Options that have options of their own, behind a dot."""

SINGLE = (
    "config", "print_config", "help", "seed_everything", "experiment", "logs", "words", "ckpt_path", "weights_only",
    "verbose", "return_predictions",
)  # fmt: skip
"""Options without a dot in their name, of any kind of run."""

PARTS = ("class_path", "init_args", "dict_kwargs", "help")
"""What jsonargparse takes behind the name of a class besides its arguments."""

NUMBERS = {"int": "int", "float": "a finite number"}
"""Type of an argument → what the parser calls it."""

NO_DIGITS = ("inf", "nan", "null", "none")
"""Words that the parser may take for a number, or has more to say about."""

ANSWERED = {"--print_config", "--help", "-h"}
"""Options that are answered even if others are wrong."""


def check_options(args: Sequence[str]) -> None:
    """Check the names of the options of a run.

    Args:
        args: arguments of the command line.

    Raises:
        UsageError: an unknown sub-command or option, an option whose class has no such argument, a configuration that
            does not exist, an unknown head, an option without a value, or a word that an argument cannot be.
    """
    if args and not args[0].startswith("-") and args[0] not in RUNS:
        raise unknown_name("sub-command", args[0], [*RUNS, *COMMANDS])
    if {word.split("=")[0] for word in args} & ANSWERED:
        return
    args = with_named_configs(args)
    classes = _chosen(args)
    for i, word in enumerate(args):
        path, equals, value = word.partition("=")
        following = args[i + 1] if i + 1 < len(args) else ""
        if path.startswith("--"):
            _check_group(word, path[2:].rstrip("+"))
        if path.startswith("--") and "." in path:
            _check(word, [part.rstrip("+") for part in path[2:].split(".")], value if equals else following, classes)


def _check(word: str, parts: list[str], value: str, classes: dict[str, list[str] | None]) -> None:
    """Raise UsageError if an option is not one of its class, or cannot have its value.

    Args:
        word: the option as it was given.
        parts: of its name.
        value: of the option.
        classes: group of options → classes that may have them.
    """
    group, names = parts[0], [part for part in parts[1:] if part != "init_args"]
    while names:
        known = _known(group, classes)
        if known is None or names[0] in PARTS or not names[0]:
            return
        if names[0] not in known:
            raise _unknown(word, group, known)
        if len(names) == 1 and (not value or value.startswith("--")) and "=" not in word:
            raise UsageError(f"{word} needs a value")
        if len(names) == 1 and value and not value.startswith("-"):
            _check_word(".".join(parts), names[0], value, classes.get(group) or [])
        group, names = f"{group}.{names[0]}", names[1:]


def _check_group(word: str, path: str) -> None:
    """Raise UsageError if no kind of run has the option, or the group that it begins with."""
    first = path.partition(".")[0]
    if first not in GROUPS and (first not in SINGLE or "." in path):
        from cifnet_pl.cli.option_errors import unknown_option

        rest = path.removeprefix(first)
        raise UsageError(unknown_option(word, ["--print_config", *(f"--{name}{rest}" for name in (*GROUPS, *SINGLE))]))


def _known(group: str, classes: dict[str, list[str] | None]) -> list[str] | None:
    """Return the arguments that options of a group may name; None if only the parser knows."""
    if group == "trainer":
        return trainer_arguments() or None
    found = [arguments(name) for name in classes.get(group) or []]
    names = [name for own in found if own is not None for name in own]
    return names if found and None not in found else None


def _unknown(word: str, group: str, known: Sequence[str]) -> UsageError:
    from cifnet_pl.cli.option_errors import unknown_option

    return UsageError(unknown_option(word, ["--print_config", *(f"--{group}.{name}" for name in known)]))


def _check_word(option: str, argument: str, value: str, classes: Sequence[str]) -> None:
    for name in classes:
        words = choices(name, argument)
        if words is not None and value not in words and len(classes) == 1:
            expected = ", ".join(f"'{word}'" for word in words)
            raise UsageError(f"--{option} is '{value}', expected one of {expected}")
        # Numbers are left to the parser where they could be some: it knows all ways to write one.
        kind = plain_type(name, argument) if len(classes) == 1 else None
        if kind in NUMBERS and not any(c.isdigit() for c in value) and value.lower().lstrip("+.") not in NO_DIGITS:
            raise UsageError(f"--{option} is '{value}', expected {NUMBERS[kind]}")


def trainer_arguments() -> list[str]:
    """Return the arguments of Lightning's Trainer, as its source says; none where there is no such source."""
    package, file, name = TRAINER
    spec = find_spec(package)
    return class_arguments(Path((spec.submodule_search_locations or [""])[0], file), name) if spec else []


# ---------------------------------------------------------------------- the classes that are chosen


def _chosen(args: Sequence[str]) -> dict[str, list[str] | None]:
    """Return group of options → classes that may have them; None where that cannot be told."""
    chosen: dict[str, list[str] | None] = dict(DEFAULTS)
    for i, word in enumerate(args):
        key, equals, attached = word.partition("=")
        value = attached if equals else args[i + 1] if i + 1 < len(args) else ""
        name = key.removeprefix("--").replace(".init_args", "").removesuffix(".class_path")
        if key in ("--config", "-c"):
            _of_config(Path(value), chosen)
        elif key.startswith("--") and name in ("model", *NESTED):
            chosen[name] = _class_of(name, value)
    return chosen


def _of_config(path: Path, chosen: dict[str, list[str] | None]) -> None:
    """Take over the classes that a configuration names."""
    from cifnet_pl.utilities.files import read_yaml

    try:
        content = read_yaml(path, "configuration file")
    except CifnetError:  # the parser has more to say about it
        content = None
    if not isinstance(content, dict) or not content.keys() & {"model", "data", "experiment"}:
        chosen.update(dict.fromkeys(chosen))
        return
    model = content.get("model")
    if model is None:
        return
    options = (model.get("init_args") or {}) if isinstance(model, dict) else {}
    if isinstance(model, str) or "class_path" in model:
        chosen["model"] = _class_of("model", model)
    for group in NESTED:
        value = options.get(group.partition(".")[2])
        if value is not None:
            chosen[group] = _class_of(group, value)


def _class_of(group: str, value: Any) -> list[str] | None:
    """Return the class that a value of an option names, in a list; None where it is not one of this package.

    Raises:
        UsageError: a head without a module that nobody offers.
    """
    name = value.get("class_path") if isinstance(value, dict) else value
    if not isinstance(name, str) or arguments(name) is None:
        if group == "model.head" and isinstance(name, str) and name.isidentifier() and name != "null":
            from cifnet_pl.utilities.plugins import offered

            known = [*head_names(), *offered("heads")]
            if name not in known:
                raise unknown_name("head", name, known)
        return None
    return [name]
