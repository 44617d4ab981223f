"""Say in one sentence what is wrong with an option of the command line, with the nearest names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import NoReturn

from jsonargparse import ArgumentParser

from cifnet_pl.utilities.errors import CifnetError, UsageError
from cifnet_pl.utilities.text import printable

EPOCHS = "--trainer.max_epochs cannot be set, a task is one epoch: use --data.max_tasks or --data.classes_per_task"


class OneSentence(ArgumentParser):
    """A parser that raises :class:`UsageError` with one sentence instead of jsonargparse's long message."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise the short error; parsers that jsonargparse uses internally keep its own."""
        if not self.exit_on_error:
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        options = [option for action in parser._actions for option in action.option_strings]
        raise UsageError(sentence(message, options, parser.prog)) from ex


def sentence(message: str, options: Collection[str] = (), program: str = "cifnet") -> str:
    """Return the part of jsonargparse's message that the user can act on, as one sentence.

    Args:
        message: of jsonargparse.
        options: that exist.
        program: beginning of the command line, such as ``cifnet report``.
    """
    linked = re.search(r"--> trainer\.max_epochs", message)
    if linked:
        return EPOCHS
    missing = re.match(r"the following arguments are required: (.*)", message)
    if missing:
        names = missing[1].split(", ")
        first = next((name for name in names if f"--{name}" not in options), None)
        if first is not None:
            return f"no {first} are given: name them before the options, {program} {first.upper()} …"
        return f"the following arguments are required: {', '.join(f'--{name}' for name in names)}"
    alone = re.match(r"argument (?:-\w/)?(--\S+): expected (?:one|at least one) argument", message)
    if alone:
        return f"{alone[1]} needs a value"
    unrecognised = re.match(r"unrecognized arguments: (.*)", message)
    if unrecognised:
        word = unrecognised[1].split()[0]
        if not word.startswith("-"):
            also = "; photos to learn are given as --data.root FOLDER" if "--data.root" in options else ""
            several = f"'{printable(word)}' is one word too many: an option takes one value, in quotes if it has spaces"
            return several + also
        return unknown_option(word, options)
    keys = re.findall(r'Parser key "([^"]+)"', message)
    refused = re.search(r"Option '([^']+)' is not accepted", message)
    if refused:
        return unknown_option("--" + ".".join([*keys, refused[1]]), options)
    lines = [line.strip().removeprefix("- ") for line in message.splitlines()]
    kind = re.compile(r"Expected an? (?!path)(.+?)(?:\. Got value.*|: .*)?$")
    expected = [match[1] for line in lines if (match := kind.search(line))]
    value = re.search(r"(?:Got|Given) value: (.*?)(?:\. Got value.*)?$", message, re.MULTILINE)
    absent = re.search(r"No module named '[^']*'|module '\S+' has no attribute '[^']*'", message)
    if not keys or not expected or not value or absent:
        last = next(line for line in reversed(lines) if line and not line.startswith('in "<'))  # a place in YAML
        reason = absent[0].replace("No", "no") if absent else re.sub(r"\. Got value.*", "", last)
        return ": ".join(["--" + ".".join(keys), reason] if keys else [reason])
    kinds = dict.fromkeys(_plain_type(name) for name in expected if "NoneType" not in name)
    return f"--{'.'.join(keys)} is '{value[1]}', expected {' or '.join(kinds)}"


def unknown_option(name: str, options: Collection[str]) -> str:
    """Return a sentence about an unknown option, with the nearest options.

    Args:
        name: the unknown option.
        options: that exist.
    """
    option = name.split("=")[0]
    known = [
        o for o in options if o.startswith("--") and not o.endswith(("+", ".help")) and not option.startswith(f"{o}.")
    ]
    near = difflib.get_close_matches(option, known, n=2, cutoff=0.8)
    everything = "--print_config shows all, --help explains them" if "--print_config" in options else "see --help"
    hint = f"did you mean {' or '.join(near)}?" if near else everything
    return f"unknown option {name}: {hint}"


def _plain_type(kind: str) -> str:
    plain = re.sub(r"<class '([\w.]+)'>", lambda m: m[1].split(".")[-1], kind)
    plain = re.sub(r"typing\.Literal\[(.*)\]", lambda m: f"one of {m[1]}" if "," in m[1] else m[1].strip("'"), plain)
    return {"dot import path string": "the name of a class", "float": "a finite number"}.get(plain, plain)


def buried_error(error: BaseException) -> CifnetError | None:
    """Return the package's own error that a library wrapped into one of its own, or None."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, CifnetError):
        seen = seen.__cause__ or seen.__context__
    return seen
