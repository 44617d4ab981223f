"""``sweep``: run the points of sweep files one after another, and report on them.

Each point is a whole configuration on disk, which ``fit`` runs as a process of its own. A point is
complete once a run of it has a summary.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from signal import Signals
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from cifnet_pl.cli.configs import find_config
from cifnet_pl.cli.outputs import writing
from cifnet_pl.cli.parsing import arguments_of, plain, yaml_value
from cifnet_pl.utilities.errors import (
    CifnetError,
    UsageError,
    explained,
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
    listed,
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

DATA_MODULE = "cifnet_pl.data.datamodule.CIFNetDataModule"
"""Class of the section ``data``, which names none."""

Overrides = Sequence[tuple[str, str]]


class Option(BaseModel):
    """An option of an axis; all other entries are settings by dotted name.

    Attributes:
        label: in the name of a point; that of the file where ``config`` is given.
        config: a configuration file, relative to the sweep's, or a pattern for several of them. A
            point takes its model, trainer and preparation of images from it, instead of from the
            base, and keeps its ``OWN_SETTINGS``.
    """

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)

    label: str = ""
    config: Path | None = None


class SweepBlock(BaseModel):
    """A part of a sweep, such as that of one data set.

    Attributes:
        label: in the names of its points.
        fixed: dotted name → value, for all points.
        axes: name → options; a point has one option of each axis.
    """

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    label: str | None = None
    fixed: dict[str, Any] = {}
    axes: dict[str, Annotated[list[Option], Field(min_length=1)]] = {}


class Sweep(SweepBlock):
    """The content of a sweep file, whose settings and axes hold for all its parts.

    Attributes:
        base: configuration file, relative to this one.
        seeds: each sets both seed_everything and the class order.
        parts: blocks with settings and axes of their own.
    """

    base: str
    seeds: Annotated[list[StrictInt], Field(min_length=1)] | None = None
    parts: list[SweepBlock] = [SweepBlock()]


@dataclass
class Point:
    """One run of a sweep.

    Attributes:
        config: the whole configuration.
        labels: axis → label of the point's option; "part" and "seed" among them.
        ignored: names of the overrides that do not hold for it: its classes do not have them, or
            its option has settings of its own.
    """

    config: dict[str, Any]
    labels: Mapping[str, str]
    ignored: Sequence[str] = ()

    @cached_property
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
        labels = [slug(label, keep="A-Z.+") for label in self.labels.values()]
        return "-".join([*labels, self.identity])


def sweep(
    files: list[str],
    overrides: Sequence[tuple[str, str]] = (),
    logs: str = "lightning_logs",
    output: str | None = None,
    external: str | None = None,
    seeds: str | None = None,
    only: list[str] | None = None,
    without: list[str] | None = None,
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
        external: CSV file of methods run elsewhere, for the report.
        seeds: such as 1,2 in place of the files' own, or null.
        only: labels of the points to run, such as ridge s1; of each axis that is named, one of its
            labels.
        without: labels of points to leave out.
        dry_run: only list the points.
        overwrite: whether files in output may be replaced.

    Raises:
        UsageError: a file that is not a sweep, a label or an option that no point has, a bad list
            of seeds, something at ``output``, or no file at ``external``.
        DataError: ``external`` is not as it should be.
        CifnetError: some points failed; the others are complete.
    """
    invalid = f"seeds is '{seeds}', expected such as 1,2,3"
    with explained(UsageError, invalid, ValueError):
        own_seeds = [int(seed) for seed in (seeds or "").split(",") if seed]
    every: dict[str, Point] = {}
    for file in files:
        for point in read_points(find_config(file), overrides, own_seeds):
            every[point.identity] = point
    points = choose(list(every.values()), only or (), without or ())
    jobs = {folder_of(expanded(logs), point): point for point in points}
    print_text(number_of(len(jobs), "point"))
    print_ignored(overrides, points)
    if dry_run:
        for folder in jobs:
            print_text(f"{folder.name}: {state(folder) or 'not run yet'}")
        return
    if external is not None:
        from cifnet_pl.report.external_results import read_rows

        read_rows(expanded(external))  # refused before hours of work
    target = None
    if output is not None:
        target = expanded(output)
    with writing(target, overwrite, "folder"):
        failed = run_all(jobs)
        if target is not None and len(failed) < len(jobs):
            from cifnet_pl.report import report

            report([str(folder) for folder in jobs], str(target), external)
    if failed:
        raise CifnetError(
            f"{len(failed)} of {len(jobs)} points failed, the first is {failed[0]} (see its"
            f" {OUTPUT_LOG}): the same command retries them, with --output only by --overwrite"
        )


def folder_of(logs: Path, point: Point) -> Path:
    """Return the folder of a point's experiment, which may have another name in an earlier sweep.

    Args:
        logs: folder that holds all runs.
        point: of a sweep.
    """
    present = sorted(logs.glob(f"*-{point.identity}"))
    return next(iter(present), logs / point.name)


def state(folder: Path) -> str:
    """Return the final accuracy of the newest run of a point that has a summary; "" for none."""
    for run in reversed(versions(folder)):
        summary = run / "summary.json"
        if summary.is_file():
            return f"A_K {number(json.loads(summary.read_text())['A_K'], unit=' %')}"
    return ""


def run_all(jobs: Mapping[Path, Point]) -> list[Path]:
    """Run all points that are not complete; return the folders of those that failed.

    Args:
        jobs: folder of each point's experiment → the point.
    """
    for folder, point in jobs.items():
        if not state(folder):
            names = {"experiment": folder.name, "logs": str(folder.parent)}
            write_text(folder / POINT, dump_yaml({**point.config, **names}))
    failed = []
    for count, folder in enumerate(jobs, 1):
        how = "complete already"
        if not state(folder):
            how = run_point(folder)
        message = f"{how}, {state(folder)}"
        if not state(folder):
            message = f"failed ({how})"
            write_text(folder / FAILURE, f"{how}\n")
            failed.append(folder)
        print_text(f"[{count}/{len(jobs)}] {folder.name}: {message}")
    return failed


def run_point(folder: Path) -> str:
    """Run ``fit`` as a process, from the last checkpoint if there is one; return how it ended.

    Args:
        folder: of the point.
    """
    command = [sys.executable, "-m", "cifnet_pl", "fit", "--ckpt_path", "last"]
    command += ["--config", str(folder / POINT)]
    start = time.monotonic()
    try:
        with exclusive(folder / POINT), (folder / OUTPUT_LOG).open("ab") as log:
            code = subprocess.run(command, stdout=log, stderr=log).returncode
    except UsageError as error:  # another sweep runs this point
        return str(error)
    if code == 0:
        (folder / FAILURE).unlink(missing_ok=True)
        duration = timedelta(seconds=round(time.monotonic() - start))
        return f"done in {duration}"
    if code < 0:
        return f"killed by {Signals(-code).name}"
    said = (folder / OUTPUT_LOG).read_text(encoding="utf-8", errors="replace")
    last_line = said.strip().rpartition("\n")[2]
    return f"exit code {code}: {printable(last_line.removeprefix('cifnet: error: '))}"


# ---------------------------------------------------------------------- points


def read_points(
    path: Path, overrides: Overrides = (), seeds: Sequence[int] = ()
) -> list[Point]:
    """Return the points of a sweep file, in order, each configuration once.

    Args:
        path: YAML as :class:`Sweep` has it.
        overrides: (dotted name, YAML value) pairs that come last and win. With data.source or
            data.root among them, only the first part is run, on that data.
        seeds: in place of the file's own, where there are any.

    Raises:
        UsageError: a file that is missing, is not YAML or is not a sweep; the sentence says where.
    """
    try:
        sweep = Sweep.model_validate(read_yaml(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "this"
        raise UsageError(f"{path}: {where}: {first['msg']}") from error
    base = {"model": {"class_path": "cifnet_pl.CIFNetModule"}}
    base |= _read_config(path.parent / sweep.base)
    seed_axis = []
    for seed in seeds or sweep.seeds or ():
        settings = {"seed_everything": seed, "data.class_order": seed}
        seed_axis.append(Option.model_validate({"label": f"s{seed}", **settings}))
    parts = sweep.parts
    if {"data.source", "data.root"} & dict(overrides).keys():
        parts = [parts[0].model_copy(update={"label": None})]
    points: dict[str, Point] = {}
    for part in parts:
        axes = {**part.axes, **sweep.axes}
        if part.label:
            axes = {"part": [Option(label=part.label)], **axes}
        if seed_axis:
            axes["seed"] = seed_axis
        every = []
        for options in axes.values():
            files = [_of_files(option, path.parent) for option in options]
            every.append([*itertools.chain.from_iterable(files)])
        fixed = sweep.fixed | part.fixed
        for chosen in itertools.product(*every):
            by_axis = dict(zip(axes, chosen, strict=True))
            point = _point(base, fixed, by_axis, overrides)
            points.setdefault(point.identity, point)
    return list(points.values())


def _read_config(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a configuration: expected keys and values")
    return content


def _of_files(option: Option, folder: Path) -> list[Option]:
    """Return an option for each file of its pattern; UsageError for no such file."""
    if option.config is None:
        return [option]
    pattern = folder / option.config
    options = []
    for file in sorted(pattern.parent.glob(pattern.name)):
        update = {"config": file, "label": option.label or file.stem}
        options.append(option.model_copy(update=update))
    if not options:
        raise UsageError(f"no file is called {pattern}")
    return options


def _point(
    base: Mapping[str, Any],
    fixed: Mapping[str, Any],
    options: Mapping[str, Option],
    overrides: Overrides,
) -> Point:
    """Return the point of some options.

    Args:
        base: configuration that it starts from.
        fixed: settings by dotted name.
        options: by axis; names and seeds of their files are not taken over.
        overrides: those that do not hold for the point are ignored.

    Raises:
        UsageError: a class has no such setting.
    """
    config = dict(base)
    settings = dict(fixed)
    kept: tuple[str, ...] = ()
    for option in options.values():
        for name, value in (option.model_extra or {}).items():
            settings.pop(name, None)  # what comes later is set later
            settings[name] = value
        if option.config is not None:
            own = _read_config(option.config)
            for name in ("experiment", "logs", "seed_everything"):
                own.pop(name, None)
            data = {**config.get("data", {}), **own.get("data", {})}
            config |= {**own, "data": data}
            kept = OWN_SETTINGS
    config = copy.deepcopy(config)
    for name, value in settings.items():
        if not put(config, name, copy.deepcopy(value)):
            raise UsageError(f"{name} cannot be set: there is no such option")
    ignored = []
    for name, text in overrides:
        value = yaml_value(f"--{name}", text)
        if plain(name) in kept or not put(config, name, value):
            ignored.append(name)
    labels = {axis: option.label for axis, option in options.items()}
    return Point(config, labels, ignored)


def put(config: dict[str, Any], name: str, value: Any) -> bool:
    """Set a dotted name in a configuration; ``init_args`` may be left out of the name.

    Args:
        config: the configuration; it is changed in place.
        name: dotted name.
        value: of the setting.

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
    steps = plain(name).split(".")
    if steps[0] == "data" and len(steps) > 1:
        known = arguments_of(DATA_MODULE)
        if known is not None and steps[1] not in known:
            return False
    inner: Any = config
    for step in steps:
        part = inner
        if not isinstance(part, dict):
            return False
        if "class_path" in part and step != "class_path":
            known = arguments_of(str(part["class_path"]))
            if known is not None and step not in known:
                return False
            part["init_args"] = part.get("init_args") or {}
            part = part["init_args"]
        inner = part.setdefault(step, {})
    part[step] = value
    return True


def choose(
    points: Sequence[Point], only: Sequence[str], without: Sequence[str]
) -> list[Point]:
    """Choose points by the labels of their options.

    Args:
        points: of a sweep.
        only: labels; of each axis that one belongs to, a point must have one of these labels.
        without: labels that a point must not have.

    Raises:
        UsageError: a label that no point has, or no point that has these labels.
    """
    known = {label for point in points for label in point.labels.values()}
    for label in (*only, *without):
        if label not in known:
            raise unknown_name("label of the sweep", label, known)
    named = set()
    for point in points:
        named |= {axis for axis, label in point.labels.items() if label in only}
    chosen = []
    for point in points:
        is_wanted = all(point.labels.get(axis) in only for axis in named)
        if is_wanted and set(without).isdisjoint(point.labels.values()):
            chosen.append(point)
    if not chosen:
        raise UsageError("no point has these labels: see --dry_run without them")
    return chosen


def print_ignored(overrides: Overrides, points: Sequence[Point]) -> None:
    """Print a sentence for each override that does not hold for some points.

    Raises:
        UsageError: one that holds for no point.
    """
    for name, _ in overrides:
        without = [point.name for point in points if name in point.ignored]
        if len(without) == len(points):
            raise UsageError(
                f"--{name} fits no point: their classes have no such option, or their own"
                " configurations set it"
            )
        if without:
            print_text(f"--{name} is not for {len(without)} points: {listed(without)}")
