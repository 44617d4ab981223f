"""``sweep``: run the points of sweep files one after another, and report on them.

Each point is a whole configuration on disk, which ``fit`` runs as a process of its own. A point is
complete once a run of it has a summary.
"""

import copy
import hashlib
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from pydantic import BaseModel, Field, PrivateAttr, StrictInt, ValidationError

from cifnet_pl.cli.outputs import refuse_other, writing
from cifnet_pl.cli.parsing import arguments_of, find_config, plain, yaml_value
from cifnet_pl.utilities.errors import (
    CifnetError,
    UsageError,
    explained,
    first_mistake,
    unknown_name,
)
from cifnet_pl.utilities.files import (
    dump_yaml,
    exclusive,
    expanded,
    flatten,
    read_yaml,
    write_text,
)
from cifnet_pl.utilities.run_folders import FAILURE, POINT, versions
from cifnet_pl.utilities.text import (
    number,
    number_of,
    print_text,
    printable,
    slug,
)

OUTPUT_LOG = "output.log"
"""Output of the processes of a point, in its experiment's folder."""

NO_EFFECT = ("experiment", "logs", "data.num_workers", "data.cache_folder")
"""Settings that do not change the results: a point that was run with others is still complete."""

OWN_SETTINGS = ("model.backbone", "model.architecture")
"""Settings of an option's own configuration that the command line does not change.

A trained method keeps its backbone where the command line gives the frozen one of the others.
"""

SECTIONS = {"data": "cifnet_pl.data.datamodule.CIFNetDataModule"}
"""Section of a configuration that names no class → its class."""

CONFIG = dict[str, Any]
"""Type of a configuration: sections by name."""

Overrides = Sequence[tuple[str, str]]


class Option(BaseModel, extra="allow", coerce_numbers_to_str=True):
    """One choice of an axis: settings by their dotted names, and two names that are none.

    Attributes:
        label: used in the names of points.
        config: a configuration file relative to the sweep's, or a pattern for several of them, each
            an option that is named as its file. A point takes its model, trainer and preparation of
            images from it, instead of from the base, and keeps its ``OWN_SETTINGS``.
    """

    label: str = ""
    config: str = ""
    _content: CONFIG = PrivateAttr(default_factory=dict)  # of that file


class SweepBlock(BaseModel, extra="forbid", coerce_numbers_to_str=True):
    """A part of a sweep, such as that of one data set.

    Attributes:
        label: in the names of its points.
        fixed: dotted name → value, for all points.
        axes: name → options; a point has one option of each axis.
    """

    label: str = ""
    fixed: CONFIG = {}
    axes: dict[str, list[Option]] = {}


class Sweep(SweepBlock):
    """The content of a sweep file, whose settings and axes hold for all its parts.

    Attributes:
        base: configuration file, relative to this one.
        seeds: each sets seed_everything, and the class order where nothing else names one. An order
            that equals the seed of its own configuration counts as set by that seed.
        parts: blocks with settings and axes of their own.
    """

    base: str
    seeds: list[StrictInt] = []
    parts: list[SweepBlock] = Field([SweepBlock()], min_length=1)


@dataclass
class Point:
    """One run of a sweep.

    Attributes:
        config: the whole configuration.
        labels: axis → label of the point's option; "part" and "seed" among them.
        ignored: names of the overrides that do not hold for it: its classes do not have them, or
            its option has settings of its own.
    """

    config: CONFIG
    labels: Mapping[str, str]
    ignored: Sequence[str] = ()

    @property
    def identity(self) -> str:
        """Ten hexadecimal digits that two points share only if they give the same run."""
        settings = flatten(self.config)
        for name in NO_EFFECT:
            settings.pop(name, None)
        text = json.dumps(settings, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def name(self) -> str:
        """The name of its experiment; it ends in ``identity``."""
        return slug("-".join([*self.labels.values(), self.identity]), keep="A-Z.+-")


def sweep(
    files: Sequence[str],
    overrides: Overrides = (),
    logs: str = "lightning_logs",
    output: str | None = None,
    seeds: str | None = None,
    only: Sequence[str] = [],
    without: Sequence[str] = [],
    dry_run: bool = False,
    overwrite: bool = False,
) -> None:
    """Run every point of sweep files that is not complete yet, each as a process of its own.

    Options with a dot in their name (--data.root DIR) hold for all points whose classes have them.
    The trained methods of configs/paper keep their own backbones. A point that was stopped goes on
    where it was. A point that fails does not stop the others. Points that several files share are
    run once.

    Args:
        files: sweep files, see configs/paper.
        overrides: (name, value) of the options with a dot.
        logs: folder that holds all runs.
        output: folder for a report on the points of these files, or null for none.
        seeds: such as 1,2 in place of the files' own, or null.
        only: labels of the points to run, such as ridge s1; of each axis that is named, one of its
            labels.
        without: labels of points to leave out.
        dry_run: only list the points.
        overwrite: whether files in output may be replaced.

    Raises:
        UsageError: a file that is not a sweep, a label or an option that no point has, a bad list
            of seeds, or something at ``output``.
        CifnetError: some points failed; the others are complete.
    """
    invalid = f"seeds is '{seeds}', expected such as 1,2,3"
    with explained(UsageError, invalid, ValueError):
        own_seeds = [int(seed) for seed in (seeds or "").split(",") if seed]
    every: dict[str, Point] = {}
    for file in files:
        for point in read_points(find_config(file), overrides, own_seeds):
            every.setdefault(point.identity, point)
    points = choose(every.values(), only, without)
    place = expanded(logs)
    jobs = {}
    for point in points:
        # An earlier sweep may have run it under another name.
        present = place.glob(f"*-{point.identity}")
        folder = min(present, default=place / point.name)
        jobs[folder] = point.config | {
            "experiment": folder.name,
            "logs": str(place),
        }
    print_text(number_of(len(jobs), "point"))
    print_ignored(points)
    if dry_run:
        for folder in jobs:
            print_text(f"{folder.name}: {state(folder) or 'not run yet'}")
        return
    if output is not None and not overwrite:
        table = expanded(output) / "tables" / "runs.csv"
        if table.is_file():
            import pandas as pd  # here: it takes half a second

            runs = pd.read_csv(table)["folder"]
            reported = {Path(run).parent.name for run in runs}
            refuse_other(output, reported == {job.name for job in jobs})
    with writing(output, overwrite, "folder"):
        failed = run_all(jobs)
        if output is not None and failed != list(jobs):
            from cifnet_pl.report import report

            report(list(jobs), output)
    if failed:
        raise CifnetError(
            f"{len(failed)} of {len(jobs)} points failed, the first is {failed[0]} (see its"
            f" {OUTPUT_LOG}): the same command retries them, with --output only by --overwrite"
        )


def state(folder: Path) -> str:
    """Return the final accuracy of the newest run of a point that has a summary; "" for none."""
    for run in reversed(versions(folder)):
        summary = run / "summary.json"
        if summary.is_file():
            accuracy = json.loads(summary.read_text())["A_K"]
            return f"A_K {number(accuracy, unit=' %')}"
    return ""


def run_all(jobs: Mapping[Path, CONFIG]) -> list[Path]:
    """Run all points that are not complete; return the folders of those that failed.

    Args:
        jobs: folder of each point's experiment → its configuration.
    """
    for folder, config in jobs.items():
        if not state(folder):
            write_text(folder / POINT, dump_yaml(config))
    failed = []
    for count, folder in enumerate(jobs, 1):
        try:
            message = state(folder) or run_point(folder)
        except CifnetError as error:
            message = f"failed ({error})"
            write_text(folder / FAILURE, f"{error}\n")
            failed.append(folder)
        print_text(f"[{count}/{len(jobs)}] {folder.name}: {message}")
    return failed


def run_point(folder: Path) -> str:
    """Run ``fit`` as a process, from the last checkpoint if there is one; return its accuracy.

    Args:
        folder: of the point.

    Raises:
        UsageError: another sweep runs this point.
        CifnetError: it failed; the sentence says how.
    """
    point = folder / POINT
    words = [
        sys.executable,
        "-m",
        "cifnet_pl",
        "fit",
        "--config",
        str(point),
        "--ckpt_path",
        "last",
    ]
    output = folder / OUTPUT_LOG
    with exclusive(point), output.open("ab") as log:
        code = subprocess.call(words, stdout=log, stderr=log)
    if code < 0:
        raise CifnetError(f"killed by {Signals(-code).name}")
    accuracy = state(folder)
    if code or not accuracy:
        said = output.read_text(errors="replace")
        last_line = said.strip().rpartition("\n")[2]
        raise CifnetError(f"exit code {code}: {printable(last_line)}")
    (folder / FAILURE).unlink(missing_ok=True)
    return accuracy


# ---------------------------------------------------------------------- points


def read_points(
    path: Path,
    overrides: Overrides = (),
    seeds: Sequence[int] = (),
) -> list[Point]:
    """Return the points of a sweep file, in order.

    Args:
        path: YAML as :class:`Sweep` has it.
        overrides: (dotted name, YAML value) pairs that come last and win. With data.source or
            data.root among them, only the first part is run, on that data.
        seeds: in place of the file's own, where there are any.

    Raises:
        UsageError: a file that is missing, is not YAML or is not a sweep; the sentence says where.
    """
    with explained(UsageError, str(path), ValidationError, reason=first_mistake):
        sweep = Sweep.model_validate(read_yaml(path))
    base = read_yaml(path.parent / sweep.base)
    base["model"] = base.get("model") or {"class_path": "cifnet_pl.CIFNetModule"}
    base["data"] = base.get("data") or {}
    if {"data.source", "data.root"} & dict(overrides).keys():
        del sweep.parts[1:]
        sweep.parts[0].label = ""
    seed_axis = [
        Option.model_validate({"label": f"s{seed}", "seed_everything": seed})
        for seed in seeds or sweep.seeds
    ]
    if seed_axis:
        _drop_seed(base)
    points = []
    for part in sweep.parts:
        names = ["part", "seed", *part.axes, *sweep.axes]
        if len(set(names)) < len(names):
            raise UsageError(
                f"{path}: an axis is called part or seed, or two have one name: rename it"
            )
        settings = {"label": part.label} | sweep.fixed | part.fixed
        shared = Option.model_validate(settings)
        axes = {
            "part": [shared],
            **part.axes,
            **sweep.axes,
            "seed": seed_axis or [Option()],
        }
        every = [_with_files(options, path.parent) for options in axes.values()]
        for chosen in itertools.product(*every):
            by_axis = dict(zip(axes, chosen, strict=True))
            points.append(_point(base, by_axis, overrides))
    return points


def _with_files(options: Sequence[Option], folder: Path) -> Iterator[Option]:
    """Yield the options of an axis, with one for each file of a pattern."""
    for option in options:
        if not option.config:
            yield option
            continue
        pattern = folder / option.config
        found = sorted(pattern.parent.glob(pattern.name))
        for file in found or [pattern]:  # which cannot be read, and is named
            label = option.label or file.stem
            of_file = option.model_copy(update={"label": label})
            of_file._content = read_yaml(file)
            yield of_file


def _point(base: CONFIG, options: Mapping[str, Option], overrides: Overrides) -> Point:
    """Return the point of some options.

    Args:
        base: configuration that it starts from.
        options: by axis; seeds of their files are not taken over.
        overrides: those that do not hold for the point are ignored.

    Raises:
        UsageError: a class has no such setting, or the file of an option does not exist.
    """
    config = copy.deepcopy(base)
    seed = (options["seed"].model_extra or {}).get("seed_everything")
    with_own = [option for option in options.values() if option.config]
    for option in with_own:
        config |= _own_config(option._content, config, seed is not None)
    for axis, option in options.items():
        values = option.model_dump(exclude={"label", "config"})
        if seed not in (None, values.get("seed_everything", seed)):
            raise UsageError(
                f"axis {axis} and seeds both set seed_everything: leave one of them out"
            )
        for name, value in values.items():
            if not put(config, plain(name), value):
                raise UsageError(f"{name} cannot be set: there is no such option")
    if seed is not None:
        config["data"].setdefault("class_order", seed)
    ignored = []
    for name, text in overrides:
        value = yaml_value(f"--{name}", text)
        path = plain(name)
        is_kept = with_own and path in OWN_SETTINGS
        if is_kept or not put(config, path, value):
            ignored.append(name)
    labels = {axis: option.label for axis, option in options.items() if option.label}
    return Point(config, labels, ignored)


def _own_config(content: CONFIG, config: CONFIG, has_seed: bool) -> CONFIG:
    """Return the configuration of an option, with the data of the base where it names none.

    Args:
        content: of its file.
        config: the base.
        has_seed: whether the point has a seed of the sweep.
    """
    own = copy.deepcopy(content)
    if has_seed:
        _drop_seed(own)
    own.pop("seed_everything", None)
    own["data"] = config["data"] | (own.get("data") or {})
    return own


def _drop_seed(config: CONFIG) -> None:
    """Drop the seed of a configuration, in place, and the class order where it is the same."""
    seed = config.pop("seed_everything", None)
    data = config.get("data") or {}
    if seed is not None and data.get("class_order") == seed:
        del data["class_order"]


def put(config: CONFIG, name: str, value: Any, kind: str | None = None) -> bool:
    """Set a dotted name in a configuration; ``init_args`` is left out of the name.

    Args:
        config: the configuration; it is changed in place.
        name: dotted name.
        value: of the setting.
        kind: class of the configuration, where it names none; None if it has none.

    Returns:
        Whether there is such a setting: no class on the way lacks it, as RidgeHead lacks
        oversampling, and no part is null. ``fit`` reports a class that cannot be imported.

    Example:
        >>> config = {"model": {"head": {"class_path": "RidgeHead", "init_args": {}}}}
        >>> put(config, "model.head.ridge", 0.1)
        True
        >>> config["model"]["head"]["init_args"]
        {'ridge': 0.1}
    """
    step, _, rest = name.partition(".")
    kind = config.get("class_path", kind)
    if kind is not None and step != "class_path":
        known = arguments_of(str(kind))
        if known is not None and step not in known:
            return False
        if "class_path" in config:
            config["init_args"] = config.get("init_args") or {}
            config = config["init_args"]
    if not rest:
        config[step] = value
        return True
    inner = config.get(step, {})
    if isinstance(inner, str) and arguments_of(inner):  # a class in its short form
        inner = {"class_path": inner}
    if not isinstance(inner, dict) or not put(inner, rest, value, SECTIONS.get(step)):
        return False
    config[step] = inner
    return True


def choose(
    points: Collection[Point],
    only: Sequence[str],
    without: Sequence[str],
) -> list[Point]:
    """Choose points by the labels of their options.

    Args:
        points: of a sweep.
        only: labels; of each axis that one belongs to, a point must have one of these labels.
        without: labels that a point must not have.

    Raises:
        UsageError: a label that no point has, or no point that has these labels.
    """
    known: set[str] = set()
    named_axes: set[str] = set()
    for point in points:
        known.update(point.labels.values())
        named_axes.update(axis for axis, label in point.labels.items() if label in only)
    for label in {*only, *without} - known:
        raise unknown_name("label of the sweep", label, known)
    chosen = []
    for point in points:
        is_wanted = all(point.labels.get(axis) in only for axis in named_axes)
        if is_wanted and not set(without).intersection(point.labels.values()):
            chosen.append(point)
    if not chosen:
        raise UsageError("no point has these labels: see --dry_run without them")
    return chosen


def print_ignored(points: Sequence[Point]) -> None:
    """Print a sentence for each override that does not hold for some points.

    Raises:
        UsageError: one that holds for no point.
    """
    counts: Counter[str] = Counter()
    for point in points:
        counts.update(point.ignored)
    for name, count in counts.items():
        if count == len(points):
            raise UsageError(
                f"--{name} fits no point: their classes have no such option, or their own"
                " configurations set it"
            )
        print_text(f"--{name} is not for {number_of(count, 'point')}")
