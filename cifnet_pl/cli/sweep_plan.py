"""Print what a sweep is going to run, and how long that will take."""

from __future__ import annotations

import copy
import csv
import hashlib
import itertools
import json
import re
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from rich.console import Console

from cifnet_pl.cli.options_of_classes import fits
from cifnet_pl.report.runs import is_complete, read_run
from cifnet_pl.utilities.errors import UsageError, unknown_name
from cifnet_pl.utilities.files import read_yaml, write_json
from cifnet_pl.utilities.run_folders import versions
from cifnet_pl.utilities.text import number_of

OWN_KEYS = ("label", "config", "keep")
"""Keys of an option that are not settings."""


def sections_of(content: Any, path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Return a sweep, or one of its parts.

    Args:
        content: what the file has.
        path: of the file, for errors.
        keys: that may occur.

    Raises:
        UsageError: it is no mapping, or has another key.
    """
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a sweep: expected {', '.join(keys)}")
    unknown = [key for key in content if key not in keys]
    if unknown:
        raise UsageError(f"{path}: '{unknown[0]}' is not a part of a sweep, expected {', '.join(keys)}")
    return content


def options_of(content: Any, path: Path) -> dict[str, Any]:
    """Return a mapping of dotted names to values; nothing is an empty one.

    Raises:
        UsageError: it is something else.
    """
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise UsageError(f"{path}: '{content}' is not a set of options, expected dotted names and values")
    return content


def axes_of(content: Any, path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the options of each axis, those with a pattern of configurations once for each file.

    Raises:
        UsageError: an axis or an option that is none, or two options with one label.
    """
    axes = {}
    for name, options in options_of(content, path).items():
        if not isinstance(options, list) or not options:
            raise UsageError(f"{path}: axis {name} has no options, expected a list")
        axes[name] = [variant for option in options for variant in _with_configs(_option(option, path), path)]
        labels = [str(option.get("label", "")) for option in axes[name]]
        if "" in labels:
            raise UsageError(f"{path}: an option of axis {name} has no label")
        if len(set(map(slug, labels))) < len(labels):
            raise UsageError(f"{path}: two options of axis {name} have the same label")
    return axes


def _option(content: Any, path: Path) -> dict[str, Any]:
    option = options_of(content, path)
    kept = option.get("keep", [])
    if not isinstance(kept, list) or not all(isinstance(name, str) for name in kept):
        raise UsageError(f"{path}: keep is '{kept}', expected a list of dotted names, such as [model.backbone]")
    return option


def _with_configs(option: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """Return an option with the content of its ``config``.

    A pattern gives one option for each file, labelled by its name.

    Raises:
        UsageError: no such file, or it is not a configuration with a model.
    """
    if "config" not in option:
        return [option]
    pattern = str(option["config"])
    folder, _, name = pattern.rpartition("/")
    files = sorted((path.parent / folder).glob(name)) if "*" in name else [path.parent / pattern]
    variants = []
    for file in files:
        content = read_yaml(file)
        if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
            raise UsageError(f"{path}: {file} is not a configuration with a model")
        variants.append({"label": file.stem, **option, "config": content})
    if not variants:
        raise UsageError(f"{path}: no file is called {pattern}")
    return variants


def seed_axis(seeds: Any, path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return an axis over seeds: each sets the seed of the run and that of the class order."""
    if seeds is None:
        return {}
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise UsageError(f"{path}: seeds is '{seeds}', expected a list of integers")
    return {"seed": [{"label": f"s{s}", "seed_everything": s, "data.class_order": s} for s in dict.fromkeys(seeds)]}


def slug(label: str) -> str:
    """Return a label for a file's name: letters, digits, dots and plus signs."""
    return re.sub(r"[^A-Za-z0-9.+]+", "_", label).strip("_")


KEYS = ("base", "fixed", "axes", "seeds", "parts")
PART_KEYS = ("label", "fixed", "axes")
NO_EFFECT = ("experiment", "logs", "data.num_workers", "data.memory_mb", "data.cache_folder")
"""Settings that change neither the results nor what they cost: a point that was run with others is still done."""


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
        name: of its experiment; ends in ``identity``.
        identity: a hash of the configuration.
        config: the whole configuration.
        labels: axis → label of the point's option; "part" and "seed" among them.
        unfit: names of the overrides that its classes do not have, and that were left out of it.
        kept: names of the overrides that the sweep file keeps its own settings against.
    """

    name: str
    identity: str
    config: dict[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    unfit: tuple[str, ...] = field(default=(), compare=False)
    kept: tuple[str, ...] = field(default=(), compare=False)

    @property
    def method(self) -> str:
        """A hash that points share if they differ only in what a sweep's seed sets."""
        data = {key: value for key, value in self.config.get("data", {}).items() if key != "class_order"}
        return identity({**self.config, "data": data, "seed_everything": None})


def choose(points: Sequence[Point], only: Sequence[str], without: Sequence[str]) -> list[Point]:
    """Choose points by the labels of their options.

    Args:
        points: of a sweep.
        only: labels; of each axis that one belongs to, a point must have one of these labels.
        without: labels that a point must not have.

    Raises:
        UsageError: a label that no point has.
    """
    known = {slug(label): label for point in points for label in point.labels.values()}
    for label in [*only, *without]:
        if slug(label) not in known:
            raise unknown_name("label of the sweep", label, known.values())
    wanted, unwanted = set(map(slug, only)), set(map(slug, without))
    axes = {axis for point in points for axis, label in point.labels.items() if slug(label) in wanted}
    return [
        point for point in points
        if all(slug(point.labels.get(axis, "")) in wanted for axis in axes)
        and not unwanted & set(map(slug, point.labels.values()))
    ]  # fmt: skip


def read_points(
    path: Path, overrides: Sequence[tuple[str, str]] = (), seeds: Sequence[int] | None = None
) -> list[Point]:
    """Return the points of a sweep file, in order, each configuration once.

    Args:
        path: YAML with ``base`` (a configuration file, relative to this one), ``fixed`` (dotted name → value, for all
            points), ``axes`` (name → options, each with a ``label`` and dotted names), ``seeds`` (each sets both
            seed_everything and the class order), and ``parts`` (one for each data set, with ``label``, ``fixed`` and
            ``axes`` of its own). A point has one option of each axis. An option with ``config`` (a configuration file,
            relative to this one, or a pattern for several of them, whose names are the labels) starts from that
            file's model, trainer and way of preparing images instead of those of the base. An option with ``keep`` (a
            list of dotted names) holds these settings against overrides: a trained method keeps its network where
            the command line gives the frozen one of the others.
        overrides: (dotted name, YAML value) pairs that come last and win. An axis that makes no difference any more
            is not in the name. With data.source or data.root among them the data set is given: only the first part
            is run, on that data. One that the classes of a point do not have is left out of that point.
        seeds: in place of the file's own, or None.

    Raises:
        UsageError: a file that is missing, is not YAML or is not a sweep; the sentence says where.
    """
    sweep = sections_of(read_yaml(path), path, KEYS)
    if not isinstance(sweep.get("base"), str):
        raise UsageError(f"{path} has no base: name the configuration file that its points start from")
    base = read_yaml(path.parent / sweep["base"])
    if not isinstance(base, dict):
        raise UsageError(f"{path.parent / sweep['base']} is not a configuration: expected keys and values")
    base.setdefault("model", {"class_path": "cifnet_pl.CIFNetModule"})
    parts = sweep.get("parts") or [{}]
    if not isinstance(parts, list):
        raise UsageError(f"{path}: parts is not a list")
    common = axes_of(sweep.get("axes"), path)
    other_data = any(name in ("data.source", "data.root") for name, _ in overrides)
    points: dict[str, Point] = {}
    for settings in (sections_of(settings, path, PART_KEYS) for settings in (parts[:1] if other_data else parts)):
        over_seeds = seed_axis(sweep.get("seeds") if seeds is None else list(seeds), path)
        axes = {**axes_of(settings.get("axes"), path), **common, **over_seeds}
        fixed = {**options_of(sweep.get("fixed"), path), **options_of(settings.get("fixed"), path)}
        label = [str(settings["label"])] if "label" in settings and not other_data else []
        for point in _product(path, base, fixed, axes, overrides, label):
            points.setdefault(point.identity, point)
    return list(points.values())


def _product(
    path: Path,
    base: Mapping[str, Any],
    fixed: Mapping[str, Any],
    axes: Mapping[str, list[dict[str, Any]]],
    overrides: Sequence[tuple[str, str]],
    label: list[str],
) -> list[Point]:
    """Return all combinations of one option of each axis."""
    points = []
    for options in itertools.product(*axes.values()):
        config = copy.deepcopy(dict(base))
        for option in options:
            _start_from(config, option.get("config"))
        for name, value in [*fixed.items(), *(pair for option in options for pair in option.items())]:
            if name not in OWN_KEYS:
                put(config, name, copy.deepcopy(value), str(path))
        left_out = _override(config, overrides, [name for option in options for name in option.get("keep", ())])
        points.append(([str(option["label"]) for option in options], identity(config), config, *left_out))
    shown = [i for i in range(len(axes)) if _matters(i, [(labels, content) for labels, content, *_ in points])]
    return [
        Point(
            "-".join([*map(slug, label + [labels[i] for i in shown]), content]) or content, content, config,
            {**({"part": label[0]} if label else {}), **dict(zip(axes, labels, strict=True))}, unfit, kept,
        )
        for labels, content, config, unfit, kept in points
    ]  # fmt: skip


def _override(
    config: dict[str, Any], overrides: Sequence[tuple[str, str]], own: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Put overrides into a configuration.

    Returns:
        Names of those that its classes do not have, and of those that are among its ``own`` settings.
    """
    unfit, kept = [], []
    for name, value in overrides:
        if _within(name, own):
            kept.append(name)
        elif fits(config, name):
            put(config, name, _value(name, value), "command line")
        else:
            unfit.append(name)
    return tuple(unfit), tuple(kept)


def _within(name: str, settings: Sequence[str]) -> bool:
    """Return whether a dotted name is one of some settings or in one of them, with or without ``init_args``."""
    plain = name.replace(".init_args", "") + "."
    return any(plain.startswith(own.replace(".init_args", "") + ".") for own in settings)


def _start_from(config: dict[str, Any], other: Mapping[str, Any] | None) -> None:
    """Copy the sections of another configuration into one; names and seeds stay those of the sweep."""
    for section, content in (other or {}).items():
        if section == "data":
            config["data"] = {**config.get("data", {}), **copy.deepcopy(content)}
        elif section not in ("experiment", "logs", "seed_everything"):
            config[section] = copy.deepcopy(content)


def _matters(axis: int, points: Sequence[tuple[list[str], str]]) -> bool:
    """Return whether points that differ in one axis only are different configurations."""
    others: dict[tuple[str, ...], set[str]] = {}
    for labels, content in points:
        others.setdefault((*labels[:axis], *labels[axis + 1 :]), set()).add(content)
    options = {labels[axis] for labels, _ in points}
    return len(options) < 2 or any(len(content) > 1 for content in others.values())


def identity(config: Mapping[str, Any]) -> str:
    """Return ten hexadecimal digits that two configurations share only if they give the same run."""
    plain = copy.deepcopy(dict(config))
    for name in NO_EFFECT:
        section, _, key = name.rpartition(".")
        holder = plain.get(section) if section else plain
        if isinstance(holder, dict):
            holder.pop(key, None)
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:10]


def put(config: dict[str, Any], name: str, value: Any, where: str) -> None:
    """Set a dotted name in a configuration; ``init_args`` may be left out of the name, as on the command line.

    A mapping is merged into the one that is there, unless it names a class: then it replaces it.

    Args:
        config: it is changed in place.
        name: dotted name.
        value: of the setting.
        where: the file or command line, for errors.

    Raises:
        UsageError: the name leads through something that has no settings.

    Example:
        >>> config = {"model": {"head": {"class_path": "RidgeHead", "init_args": {}}}}
        >>> put(config, "model.head.ridge", 0.1, "grid.yaml")
        >>> config["model"]["head"]["init_args"]
        {'ridge': 0.1}
    """
    *path, last = name.split(".")
    node: Any = config
    for step in path:
        node = _arguments(node, step)
        node = node.setdefault(step, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise UsageError(f"{where}: {name} cannot be set, there is no {step} that has settings")
    node = _arguments(node, last)
    old = node.get(last)
    if isinstance(old, dict) and isinstance(value, dict) and "class_path" not in value:
        for key, inner in value.items():
            put(old, str(key), inner, where)
    else:
        node[last] = value


def value_at(config: Mapping[str, Any], name: str) -> Any:
    """Return the value of a dotted name, None where there is none; ``init_args`` may be left out of the name."""
    node: Any = config
    for step in name.split("."):
        node = _arguments(node, step)
        node = node.get(step) if isinstance(node, dict) else None
    return node


def _arguments(node: Any, name: str) -> Any:
    if isinstance(node, dict) and "class_path" in node and name not in ("class_path", "init_args", "dict_kwargs"):
        if not isinstance(node.get("init_args"), dict):
            node["init_args"] = {}
        return node["init_args"]
    return node


def _value(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--{name} is '{text}', which is not a YAML value") from error


LOG = "output.log"
"""What the processes of a point wrote, in its experiment's folder."""
PROGRESS = re.compile(r"^(?:task|step) \d+/(\d+):", re.MULTILINE)
"""What a run says after each task; the number of all tasks is in no other file of a run that is not complete."""
STEPS = re.compile(r"^task 1/(\d+): (\d+) of (\d+) steps took ([\d.]+) s(?:, ([\d.e+-]+) kWh)?$", re.MULTILINE)
"""What a run says once of the first steps of its first task, if these take long."""
ELAPSED = "elapsed.json"
"""Seconds that the processes of a point took, all attempts together, in its experiment's folder."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a whole process, and kWh of learning and evaluation; None where the energy is not known."""

    seconds: float
    kwh: float | None
    tasks: int


def elapsed(folder: Path) -> float | None:
    """Return the seconds that a point's processes took so far; None if no sweep has run it."""
    try:
        content = json.loads((folder / ELAPSED).read_text(encoding="utf-8"))
        return float(content["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def add_elapsed(folder: Path, seconds: float) -> None:
    """Add the time of one attempt to the file of a point."""
    write_json(folder / ELAPSED, {"seconds": (elapsed(folder) or 0.0) + seconds})


def cost_of(folder: Path, run: Path) -> Cost:
    """Return what a point took: the time of its processes, or of its run if no sweep has run it.

    Args:
        folder: of the point's experiment.
        run: folder of its run.
    """
    summary = read_run(run).summary
    measured = summary["train_seconds"] + (summary.get("eval_seconds") or 0.0)
    parts = [summary.get("energy_kwh"), summary.get("eval_energy_kwh")]
    kwh = sum(component for component in parts if component is not None) if parts[0] is not None else None
    return Cost(max(elapsed(folder) or 0.0, measured), kwh, summary["n_tasks"])


def estimate(point: Point, folder: Path, ran: Sequence[tuple[Point, Cost]]) -> Cost | None:
    """Estimate what is left of a point: the mean of its other seeds, less the tasks that it has learned already.

    Other configurations say nothing about it: a frozen network takes minutes where a trained one takes hours.

    Args:
        point: of the sweep.
        folder: of its experiment.
        ran: points that ran, and what they took.

    Returns:
        None if no other seed of the same configuration has run.
    """
    method = point.method
    same = [cost for other, cost in ran if other.method == method]
    if not same:
        return None
    tasks = max(cost.tasks for cost in same)
    left = max(0.0, 1 - tasks_learned(folder) / tasks)
    energies = [cost.kwh for cost in same if cost.kwh is not None]
    kwh = left * statistics.fmean(energies) if energies else None
    return Cost(left * statistics.fmean(cost.seconds for cost in same), kwh, tasks)


def estimate_running(folder: Path, seconds: float, before: int = 0) -> Cost | None:
    """Estimate what the point that is running takes in all, from the tasks that it has learned so far.

    Args:
        folder: its experiment.
        seconds: since its process was started.
        before: number of tasks that earlier processes of it had learned.

    Returns:
        The cost of a whole run, or None as long as this process has learned no task.
    """
    rows = _rows(folder)
    said = PROGRESS.findall((folder / LOG).read_text(encoding="utf-8", errors="replace")) if len(rows) > before else []
    if not said:
        return None
    tasks = int(said[-1])
    each = [float(row["train_seconds"]) + float(row["eval_seconds"] or 0.0) for row in rows]
    energies = [float(row["energy_kwh"]) + float(row["eval_energy_kwh"] or 0.0) for row in rows if row["energy_kwh"]]
    beginning = max(0.0, seconds - sum(each[before:]))
    kwh = tasks * statistics.fmean(energies) if energies else None
    return Cost(beginning + tasks * statistics.fmean(each), kwh, tasks)


def estimate_from_steps(folder: Path) -> Cost | None:
    """Estimate what the point that is running takes in all, from the first steps of its first task.

    Every task is expected to take as long as the first one.

    Args:
        folder: its experiment.

    Returns:
        The cost of a whole run, or None as long as it has said nothing of its steps.
    """
    try:
        said = STEPS.findall((folder / LOG).read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:  # its process has not started yet
        return None
    if not said:
        return None
    tasks, done, steps, seconds, kwh = said[-1]
    whole = int(tasks) * int(steps) / int(done)
    return Cost(whole * float(seconds), whole * float(kwh) if kwh else None, int(tasks))


def total(costs: Sequence[Cost | None]) -> str:
    """Return a sentence about the sum of estimates, with the number of points that have none."""
    known = [cost for cost in costs if cost is not None]
    if not known:
        return "no estimate yet: none of these configurations has run; the sweep gives one after a first task of each"
    energies = [cost.kwh for cost in known if cost.kwh is not None]
    energy = f", {sum(energies):.2g} kWh" if energies else ", energy not measured"
    without = len(costs) - len(known)
    more = f" for {len(known)} of them; {without} without an estimate, as no other seed has run" if without else ""
    return f"{duration(sum(cost.seconds for cost in known))}{energy}{more}"


def duration(seconds: float) -> str:
    """Format seconds as seconds, minutes or hours.

    Example:
        >>> duration(42), duration(600), duration(7200)
        ('42 s', '10 min', '2.0 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def tasks_learned(folder: Path) -> int:
    """Return the number of tasks in the newest run of an experiment."""
    return len(_rows(folder))


def _rows(folder: Path) -> list[dict[str, str]]:
    for version in reversed(versions(folder)):
        try:
            with (version / "tasks.csv").open(newline="", encoding="utf-8") as file:
                return list(csv.DictReader(file))
        except OSError:
            continue
    return []


PAUSE = 0.5
"""Seconds between two looks at a point that is running."""


def complete_run(folder: Path) -> Path | None:
    """Return the newest whole run of an experiment."""
    return next((path for path in reversed(versions(folder)) if is_complete(path)), None)


def result_of(run: Path) -> str:
    """Return the final accuracy of a run in words."""
    final = read_run(run).summary["A_K"]
    return "A_K not measured" if final is None else f"A_K {final:.1f} %"


def left_out_overrides(overrides: Sequence[tuple[str, str]], points: Sequence[Point]) -> list[str]:
    """Return a sentence for each override that some points do not have, and for each setting that some keep.

    Raises:
        UsageError: one that holds for no point.
    """
    sentences = _kept_settings(points)
    for name, _ in overrides:
        fitting = [point for point in points if name not in (*point.unfit, *point.kept)]
        if not fitting and any(name in point.kept for point in points):
            raise UsageError(f"--{name} fits no point, leave it out: the sweep keeps what its own file says")
        if not fitting:
            raise UsageError(f"--{name} fits no point: none of their classes has such an option")
        others = dict.fromkeys(_labels_of(point) for point in points if name in point.unfit)
        if others:
            sentences.append(f"--{name} is for {len(fitting)} of {len(points)} points, not for: {'; '.join(others)}")
    return sentences


def _kept_settings(points: Sequence[Point]) -> list[str]:
    """Return which points keep which settings against the overrides: a sentence for all of a part that are alike."""
    shared = {label for point in points if not point.kept for label in point.labels.values()}
    keeping: dict[tuple[str, str, str], dict[str, None]] = {}
    for point in points:
        own = [f"{name} {value}" for name in point.kept if (value := value_at(point.config, name)) is not None]
        if point.kept:
            part = f"{point.labels['part']}: " if "part" in point.labels else ""
            given = ", ".join(f"--{name}" for name in point.kept)
            named = [label for axis, label in point.labels.items() if axis != "seed" and label not in shared]
            name = " ".join(named) or _labels_of(point)
            keeping.setdefault((part, ", ".join(own) or "their own settings", given), {})[name] = None
    return [
        f"{part}{', '.join(names)} keep {own}; the command line holds for the others ({given})"
        for (part, own, given), names in keeping.items()
    ]


def _labels_of(point: Point) -> str:
    return " ".join(label for axis, label in point.labels.items() if axis != "seed") or point.name


def print_plan(
    console: Console, placed: Sequence[tuple[Point, Path]], left: Sequence[tuple[Point, Path]], whole: bool
) -> None:
    """Print how long the points that are left will take.

    Args:
        console: to print on.
        placed: all points, with their folders.
        left: those that are not complete.
        whole: whether to print what is known of each point as well.
    """
    ran = costs_of(placed)
    expected = {point.identity: estimate(point, folder, ran) for point, folder in left}
    for point, folder in placed if whole else ():
        if point.identity in expected:
            cost = expected[point.identity]
            state = "begun" if versions(folder) else "not run yet"
            said = f"{state}, {total([cost])}" if cost else state
        else:
            run = complete_run(folder)
            said = f"complete already, {result_of(run)}" if run else "complete already"
        console.print(f"{folder.name}: {said}", markup=False)
    if left:
        console.print(f"{len(left)} to run: {total(list(expected.values()))}", markup=False)
    else:
        console.print("all are complete")


def costs_of(placed: Sequence[tuple[Point, Path]]) -> list[tuple[Point, Cost]]:
    """Return what each point took that is complete."""
    runs = [(point, folder, complete_run(folder)) for point, folder in placed]
    return [(point, cost_of(folder, run)) for point, folder, run in runs if run is not None]


@contextmanager
def early_estimate(console: Console, folder: Path, same: int, others: Sequence[Cost | None] = ()) -> Iterator[None]:
    """Print an estimate as soon as the point that runs meanwhile has learned a task.

    If the task takes long, print one already after its first steps.

    Args:
        console: what to print on.
        folder: experiment of the point.
        same: number of points that are left of its configuration, this one among them: they take as long.
        others: estimates of the other points that are left.
    """
    start, before, over = time.monotonic(), tasks_learned(folder), threading.Event()

    def say(cost: Cost, first: str) -> None:
        left = [*[cost] * same, *others]
        every = f"; {len(left)} to run: {total(left)}" if len(left) > 1 else ""
        after = f"after its first {first} ({number_of(cost.tasks, 'task')} in all)"
        console.print(f"{folder.name}: {after} expected to take {total([cost])}{every}", markup=False)

    def watch() -> None:
        early = None
        while not over.wait(PAUSE):
            cost = estimate_running(folder, time.monotonic() - start, before)
            if cost is not None:
                say(cost, "task")
                return
            if early is None and not before and (early := estimate_from_steps(folder)) is not None:
                say(early, "steps")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextmanager
def waiting_lock(folder: Path, name: str) -> Iterator[None]:
    """Hold a lock of an experiment's folder; if another process holds it, say so and wait.

    Args:
        folder: of the experiment.
        name: of the lock's file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / name)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        print(f"waiting for {folder}, which another process is running", flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def running(folder: Path) -> AbstractContextManager[None]:
    """Return the lock that a point's process holds as long as it lives, even if its sweep was killed."""
    return waiting_lock(folder, ".running")
