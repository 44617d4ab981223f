"""Add to jsonargparse: one sentence about a wrong option, and heads that inherit no options."""

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser

from cifnet_pl.utilities.errors import (
    CifnetError,
    UsageError,
    did_you_mean,
    explained,
    unknown_name,
)
from cifnet_pl.utilities.files import (
    RECOMMENDED,
    config_files,
    expanded,
    flatten,
    read_yaml,
)
from cifnet_pl.utilities.names import DEFAULT_BACKBONE
from cifnet_pl.utilities.plugins import (
    OWN,
    failure,
    import_object,
    import_part,
    offered,
)
from cifnet_pl.utilities.text import print_text

DEFAULT_HEAD = "CIFNetHead"
"""Head where a method is chosen, as by its buffer alone, and no head is named.

Where nothing of a method is named, :func:`with_recommended` adds configs/folder.yaml to ``fit``,
which names ``RidgeHead``.
"""

METHOD_OPTIONS = (
    "model",
    "model.head",
    "model.buffer",
    "model.calibrate",
    "model.head.update_past",  # only CIFNetHead has this one and the next
    "model.head.weighting",
)
"""Options of ``fit`` that choose the method; with them nothing is recommended."""

MODULES_OF_SHORT_NAMES = (
    "cifnet_pl",
    "cifnet_pl.heads",
    "cifnet_pl.data.streams",
    "cifnet_pl.iterative",
)
"""Modules in which a class name without a module is looked up."""

CONFIG_OPTIONS = ("--config", "-c")


class OneSentence(ArgumentParser):
    """A parser that raises :class:`UsageError` with one sentence, not jsonargparse's message."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise the short error; parsers that jsonargparse uses internally keep its own."""
        if not self.exit_on_error:
            super().error(message, ex)
        raise UsageError(sentence(message, self._option_string_actions)) from ex

    def instantiate(self, *given: Any, **options: Any) -> Any:
        """Make the objects; what refuses its values is an error of this package."""
        try:
            return super().instantiate(*given, **options)
        except (ValueError, TypeError) as error:
            raise own_error(error) from None


def sentence(message: str, options: Collection[str] = ()) -> str:
    """Return jsonargparse's message as one sentence that the user can act on.

    Args:
        message: of jsonargparse.
        options: that exist.
    """
    keys = dict.fromkeys(re.findall(r'Parser key "([^"]+)"', message))
    option = "--" + ".".join(keys)
    unknown = (
        r"(?:unrecognized arguments: --|Option '|Got value: NestedArg\(key=')([\w.-]+)"
    )
    if found := re.search(unknown, message):
        if keys:
            option += "."
        for owner in re.findall(r"class_path[ =]'([\w.]+)'", message):
            options = [option + name for name in arguments_of(owner) or ()]
        option += found[1]
        known = [name for name in options if not name.endswith((".help", "+"))]
        hint = did_you_mean(option, known, likeness=0.8)
        return f"unknown option {option}: {hint or 'see --help'}"
    if keys:
        return _bad_value(message, option)
    line = message.strip().partition("\n")[0]
    if line.startswith("unrecognized") and "--data.root" in options:
        line += " (images are given as --data.root FOLDER)"
    return line


def _bad_value(message: str, option: str) -> str:
    """Return a sentence about the value of an option.

    Args:
        message: of jsonargparse.
        option: its name.
    """
    # As users write it: int for <class 'int'>, 'gcv' for typing.Literal['gcv'].
    verbose = r"<class '([\w.]+)'>|typing\.Literal\[(.*?)\]|Namespace\(class_path='([\w.]+)'\)"
    text = re.sub(verbose, r"\1\2\3", message)
    text = re.sub(r"\.+ (?=Got value)", "\n", text)
    text = text.replace("dot import path string", "class, as module.name")
    if found := re.search(r"(?:Got|Given) value: (.*)", text):
        option += f" is '{found[1]}'"
    cause = (
        r"(?:No module named|module '|Import path|Expected '|Not a valid|Multiple).*"
    )
    if found := re.search(cause, text):
        return f"{option}: {found[0]}"
    kinds = re.findall(r"Expected (?:an? )?(?!an? |path|NoneType)([^:\n]*)", text)
    if not kinds:
        return f"{option}: {text.splitlines()[-1].strip(' -')}"
    if "str" in kinds:
        option += " (put quotes around a name that YAML takes for a number)"
    return f"{option}, expected {' or '.join(dict.fromkeys(kinds))}"


@cache
def arguments_of(class_path: str) -> frozenset[str] | None:
    """Return the options of a class, with those that it passes on to its bases.

    Args:
        class_path: its module and name, or the name of a class of this package.

    Returns:
        None if it cannot be imported.
    """
    for module in ("", *MODULES_OF_SHORT_NAMES):
        with suppress(UsageError):
            kind = import_object(f"{module}.{class_path}".lstrip("."))
            return frozenset(ArgumentParser().add_class_arguments(kind))
    return None


def own_error(error: Exception) -> Exception:
    """Return the package's own error that jsonargparse wrapped, or the error itself.

    An object that is made of wrong values is an error of usage, too.
    """
    cause: BaseException = error
    while inner := cause.__cause__ or cause.__context__:
        cause = inner
        if isinstance(cause, CifnetError):
            return cause
    if "does not validate" in str(error).lower():
        return UsageError(f"the model cannot be made: {failure(cause)}")
    return error


# ---------------------------------------------------------------------- arguments of a run


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


def options_in(
    args: Sequence[str],
    others: Collection[str] = (),
) -> Iterator[tuple[str, str | None]]:
    """Yield each option with a dot in its name with its value, and every other word with None.

    Args:
        args: arguments of the command line.
        others: further options with a value.

    Raises:
        UsageError: such an option without a value, which jsonargparse may drop without a word.

    Example:
        >>> list(options_in(["grid.yaml", "--data.root", "images", "--dry_run"]))
        [('grid.yaml', None), ('--data.root', 'images'), ('--dry_run', None)]
    """
    remaining = iter(args)
    for word in remaining:
        name, equals, value = word.partition("=")
        is_dotted = name.startswith("--") and "." in name and not name.endswith(".help")
        if not is_dotted and name not in others:
            yield word, None
            continue
        if not equals:
            value = next(remaining, "--")
        if not value or (not equals and value.startswith("--")):
            raise UsageError(f"{name} needs a value")
        yield name, value


def plain(name: str) -> str:
    """Return a dotted name without the steps that may be left out."""
    return name.replace(".init_args", "")


def settings_in(args: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each word or option of ``fit`` with what it sets, by plain dotted names.

    Names of configurations become their files.

    Args:
        args: options of the command line.

    Raises:
        UsageError: an unknown configuration, with the nearest names; a configuration file that is
            not YAML; an option without a value.
    """
    for name, value in options_in(args, (*CONFIG_OPTIONS, "--model")):
        if value is None:
            yield name, {}
            continue
        if name in CONFIG_OPTIONS:
            file = find_config(value)
            value = str(file)
            content = read_yaml(file)
        elif plain(name).removesuffix(".class_path") in ("--model", "--model.head"):
            content = {name.removeprefix("--"): yaml_value(name, value)}
        else:
            content = {name.removeprefix("--"): value}
        settings = {
            plain(key).removesuffix(".class_path"): part
            for key, part in flatten(content).items()
        }
        yield f"{name}={value}", settings


def chooses_method(args: Sequence[str]) -> bool:
    """Return whether options of ``fit`` name a method, or no data to learn by the recommended one.

    Args:
        args: options of ``fit``, or of a command that evaluates what it learned.
    """
    names: set[str] = set()
    for _, settings in settings_in(args):
        names.update(settings)
    names_data = any(name.startswith("data.") for name in names)
    return not names_data or not names.isdisjoint(METHOD_OPTIONS)


def with_recommended(args: Sequence[str]) -> list[str]:
    """Add the recommended configuration where data are named, and nothing of a method."""
    if chooses_method(args):
        return list(args)
    path = config_files()[RECOMMENDED]
    print_text(
        f'cifnet: using the configuration "{RECOMMENDED}" (cifnet configs lists others)',
        sys.stderr,
    )
    # The configuration names an experiment of its own.
    return ["--config", str(path), "--experiment", "default", *args]


def with_clean_heads(args: Sequence[str]) -> list[str]:
    """Change the arguments so that a head never inherits options of another class.

    jsonargparse keeps the options of an earlier class that the new one happens to accept: a
    RidgeHead over a configuration with a CIFNetHead would get its ridge, which is on another scale.
    The head that is named last is the one of the run. It is set anew wherever another one was
    named, so that options before the last name apply to it as well. Names of configurations become
    their files, and custom classes are imported.

    Args:
        args: options of the command line.

    Raises:
        UsageError: an unknown head or configuration, with the nearest names; a configuration file
            that is not YAML; an option without a value.
    """
    from cifnet_pl.heads import HEADS

    words = []
    heads = {0: DEFAULT_HEAD}  # number of words until a head is named → its name
    for word, settings in settings_in(args):
        words.append(word)
        # Custom classes are imported here, as jsonargparse hides why one cannot be.
        method = str(settings.get("model") or OWN)
        is_own = method.partition(".")[0] == OWN
        if not is_own and not Path(method).is_file():
            import_part("methods", method)
        own = r"cifnet_pl\.heads\.(\w+\.)?"
        head = re.sub(own, "", str(settings.get("model.head") or ""))
        if head and head not in HEADS and not import_part("heads", head):
            raise unknown_name("head", head, [*HEADS, *offered("heads")])
        if head:
            heads[len(words)] = head
    *_, last = heads.values()
    for position, head in reversed(heads.items()):
        if head != last:
            words[position:position] = ["--model.head=null", f"--model.head={last}"]
    return words


def open_seeds(parser: ArgumentParser, config: Any, args: Sequence[str]) -> list[str]:
    """Return the names of the seeds of module, buffer and head that no option of ``fit`` gives.

    Args:
        parser: of data and model.
        config: with all defaults.
        args: options, of which the first names the model.
    """
    given = parser.parse_args(args, defaults=False)
    return [
        name
        for name, _ in config.items()
        if name.startswith("model.") and name.endswith(".seed") and name not in given
    ]


def choose_backbone(config: Any) -> None:
    """Set the backbone to ``none:<width>`` if the data are embeddings; say which one is left out.

    Args:
        config: configuration of ``fit``; ``model.init_args.backbone`` is changed.

    Raises:
        UsageError: the file of embeddings is not given.
        DataError: it cannot be read.
    """
    from cifnet_pl.data.sources.tables import embedding_files, open_table

    model = config.get("model.init_args") or {}
    backbone = model.get("backbone")
    if config.data.source != "embeddings" or backbone is None:
        return
    if backbone != DEFAULT_BACKBONE and backbone.partition(":")[0] != "none":
        print_text(f"note: embeddings need no backbone, {backbone} is left out")
    root = config.data.root
    files = embedding_files(expanded(root) if root else None).files
    column = (config.data.options or {}).get("embeddings", "embeddings")
    width = open_table(files[0]).matrix(column).shape[1]
    model["backbone"] = f"none:{width}"


def yaml_value(name: str, text: str) -> Any:
    """Return the value of an option that is given as YAML.

    Raises:
        UsageError: it is none.
    """
    with explained(UsageError, f"{name} is '{text}', no YAML", yaml.YAMLError):
        return yaml.safe_load(text)
