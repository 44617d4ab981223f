"""``sweep``: run the points of sweep files one after another, each once; stopped sweeps can be
continued.

A point is a whole configuration with a name. As a program (``python -m cifnet_pl.cli.sweep FILE``)
this is the process of one point.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StrictInt, ValidationError

from cifnet_pl.cli.configs import find_config
from cifnet_pl.cli.parsing import arguments_of
from cifnet_pl.utilities.errors import CifnetError, UsageError, prefixed, unknown_name
from cifnet_pl.utilities.files import read_yaml, write_text
from cifnet_pl.utilities.run_folders import FAILURE, POINT, versions
from cifnet_pl.utilities.text import number_of, printable, slug

LOG = "output.log"
"""What the processes of a point wrote, in its experiment's folder."""

ERROR = re.compile(r"^(?:cifnet: error: (.*)|([\w.]*(?:Error|Exception|Interrupt|Exit)\b.*))")
"""A sentence about an error of ours, or the last line of a traceback."""

NO_EFFECT = {"": ("experiment", "logs"), "data": ("num_workers", "cache_folder")}
"""Section → settings that do not change the results: a point that was run with others is still
done.
"""

INNER = ("class_path", "init_args", "dict_kwargs")
"""Parts of the name of an option that lead into a class."""


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
) -> None:
    """Run every point of sweep files that is not complete yet, each as a process of its own; report
    on all of them.

    Options with a dot in their name (--data.root DIR) hold for all points whose classes have them,
    but for the settings that the file keeps (``keep``): the trained methods of configs/paper keep
    their own networks. A point that was stopped goes on where it was; one that fails does not keep
    the others from running. Points that several files share are run once.

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

    Raises:
        UsageError: a file that is not a sweep, a label or an option that no point has, or a bad
            list of seeds.
        CifnetError: some points failed; the others are complete.
    """
    numbers = _seeds(seeds)
    every = [
        point for file in files for point in read_points(find_config(file), overrides, numbers)
    ]
    points = {point.identity: point for point in choose(every, only or (), without or ())}
    if not points:
        raise UsageError(
            "no point has these labels: leave out some of --only and --without, or use --dry_run"
        )
    seeded = any("seed" in point.labels for point in points.values())
    if seeded:
        kinds = "each seed sets both seed_everything and the class order"
    else:
        kinds = "no seeds"
    print(f"{number_of(len(points), 'point')}; {kinds}")
    print(
        "".join(
            f"{printable(line)}\n" for line in left_out_overrides(overrides, list(points.values()))
        ),
        end="",
    )
    jobs = [Job(point, _folder(Path(logs), point)) for point in points.values()]
    if dry_run:
        for job in jobs:
            print(
                f"{job.folder.name}:"
                f" {'not run yet' if job.run() is None else f'complete already, {job.result()}'}"
            )
        return
    from cifnet_pl.report.runs import read_run
    from cifnet_pl.report.settings import small_ridge_messages

    failed = _run_all(jobs)
    complete_runs = [run for job in jobs if (run := job.run()) is not None]
    for note in small_ridge_messages(map(read_run, complete_runs)):
        print(f"note: {note}")
    if output is not None and complete_runs:
        from cifnet_pl.report import report

        report([str(job.folder) for job in jobs if job.folder.is_dir()], output, external)
    if failed:
        raise CifnetError(
            f"{len(failed)} of {len(jobs)} points failed, the first is {failed[0]} (see its {LOG});"
            " run the same command again to try them once more"
        )


def _seeds(text: str | None) -> list[int] | None:
    try:
        if text is None:
            return None
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise UsageError(
            f"seeds is '{text}', expected integers and commas, such as 1,2,3"
        ) from None


def _folder(logs: Path, point: Point) -> Path:
    """Return the point's experiment: one that holds the same configuration under any name, or a new
    one.
    """
    if logs.is_dir():
        present = sorted(logs.glob(f"*-{point.identity}"))
    else:
        present = []
    if present:
        return present[0]
    return logs / point.name


def complete_run(folder: Path) -> Path | None:
    """Return the newest whole run of an experiment."""
    from cifnet_pl.report.runs import is_complete

    return next((path for path in reversed(versions(folder)) if is_complete(path)), None)


# ---------------------------------------------------------------------- the points of a sweep file


class Option(BaseModel):
    """An option of an axis; all other entries are settings by dotted name.

    Attributes:
        label: in the name of a point; that of the file where ``config`` is given.
        config: a configuration file, relative to the sweep's, or a pattern for several of them: a
            point starts from its model, trainer and way of preparing images instead of those of the
            base.
        keep: settings that overrides do not change: a trained method keeps its network where the
            command line gives the frozen one of the others.
    """

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)

    label: str = ""
    config: str | None = None
    keep: list[str] = []
    _start: dict[str, Any] = PrivateAttr(default_factory=dict)

    def variants(self, folder: Path) -> list[Option]:
        """Return the option with the content of its file, once for each file that its pattern
        stands for.
        """
        if self.config is None:
            return [self]
        pattern = folder / self.config
        variants = []
        for file in sorted(pattern.parent.glob(pattern.name)):
            content = read_yaml(file)
            if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
                raise UsageError(f"{file} is not a configuration with a model")
            variants.append(self.model_copy(update={"label": self.label or file.stem}))
            variants[-1]._start = content
        if not variants:
            raise UsageError(f"no file is called {self.config}")
        return variants


class Settings(BaseModel):
    """What a sweep file and each of its parts may have.

    Attributes:
        fixed: dotted name → value, for all points.
        axes: name → options; a point has one option of each axis.
    """

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    fixed: dict[str, Any] = {}
    axes: dict[str, Annotated[list[Option], Field(min_length=1)]] = {}


class Part(Settings):
    """A part of a sweep, such as that of one data set; its label is in the names of its points."""

    label: str | None = None


class Sweep(Settings):
    """The content of a sweep file.

    Attributes:
        base: configuration file, relative to this one.
        seeds: each sets both seed_everything and the class order.
        parts: with settings and axes of their own.
    """

    base: str
    seeds: Annotated[list[StrictInt], Field(min_length=1)] | None = None
    parts: list[Part] = [Part()]


@dataclass
class Point:
    """One run of a sweep.

    Attributes:
        config: the whole configuration.
        labels: axis → label of the point's option; "part" and "seed" among them.
        without: names of the overrides that were left out of it: its classes do not have them, or
            its option keeps its own settings.
    """

    config: dict[str, Any]
    labels: Mapping[str, str]
    without: Sequence[str] = ()

    @cached_property
    def identity(self) -> str:
        """Ten hexadecimal digits that two points share only if they give the same run."""
        plain = {key: value for key, value in self.config.items() if key not in NO_EFFECT[""]}
        plain["data"] = {
            key: value
            for key, value in plain.get("data", {}).items()
            if key not in NO_EFFECT["data"]
        }
        return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[
            :10
        ]

    @property
    def name(self) -> str:
        """The name of its experiment; it ends in ``identity``."""
        return "-".join([*map(short, self.labels.values()), self.identity])

    @property
    def title(self) -> str:
        """The labels of its options but for the seed, or its name where there are none."""
        return " ".join(label for axis, label in self.labels.items() if axis != "seed") or self.name


def read_points(
    path: Path, overrides: Sequence[tuple[str, str]] = (), seeds: Sequence[int] | None = None
) -> list[Point]:
    """Return the points of a sweep file, in order, each configuration once.

    Args:
        path: YAML as :class:`Sweep` has it.
        overrides: (dotted name, YAML value) pairs that come last and win. With data.source or
            data.root among them the data set is given: only the first part is run, on that data.
                One that the classes of a point do not have, or
            that its option keeps, is left out of that point.
        seeds: in place of the file's own, or None.

    Raises:
        UsageError: a file that is missing, is not YAML or is not a sweep; the sentence says where.
    """
    try:
        sweep = Sweep.model_validate(read_yaml(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(
            f"{path}: {'.'.join(map(str, first['loc'])) or 'this'}: {first['msg']}"
        ) from error
    base = read_yaml(path.parent / sweep.base)
    if not isinstance(base, dict):
        raise UsageError(
            f"{path.parent / sweep.base} is not a configuration: expected keys and values"
        )
    base.setdefault("model", {"class_path": "cifnet_pl.CIFNetModule"})
    numbers = sweep.seeds if seeds is None else seeds
    each = [
        Option.model_validate(
            {"label": f"s{seed}", "seed_everything": seed, "data.class_order": seed}
        )
        for seed in dict.fromkeys(numbers or ())
    ]
    other_data = any(name in ("data.source", "data.root") for name, _ in overrides)
    points: dict[str, Point] = {}
    for part in sweep.parts[:1] if other_data else sweep.parts:
        axes = {
            "part": [Option(label=part.label)] if part.label and not other_data else [],
            **part.axes, **sweep.axes, "seed": each,
        }  # fmt: skip
        with prefixed(str(path)):
            chosen = {
                name: [one for option in axes[name] for one in option.variants(path.parent)]
                for name in axes
            }
            check_labels(chosen)
            for point in _product(base, {**sweep.fixed, **part.fixed}, chosen, overrides):
                points.setdefault(point.identity, point)
    return list(points.values())


def check_labels(axes: Mapping[str, Sequence[Option]]) -> None:
    """Check that the options of each axis have labels that differ; UsageError otherwise."""
    for name, options in axes.items():
        labels = [short(option.label) for option in options]
        if "" in labels or len(set(labels)) < len(labels):
            if "" in labels:
                what = "an option has no label"
            else:
                what = "two options have the same label"
            raise UsageError(f"axis {name}: {what}")


def choose(points: Sequence[Point], only: Sequence[str], without: Sequence[str]) -> list[Point]:
    """Choose points by the labels of their options.

    Args:
        points: of a sweep.
        only: labels; of each axis that one belongs to, a point must have one of these labels.
        without: labels that a point must not have.

    Raises:
        UsageError: a label that no point has.
    """
    known = {short(label): label for point in points for label in point.labels.values()}
    for label in [*only, *without]:
        if short(label) not in known:
            raise unknown_name("label of the sweep", label, known.values())
    wanted = set(map(short, only))
    unwanted = set(map(short, without))
    axes = {
        axis for point in points for axis, label in point.labels.items() if short(label) in wanted
    }
    return [
        point
        for point in points
        if all(short(point.labels.get(axis, "")) in wanted for axis in axes)
        and not unwanted & set(map(short, point.labels.values()))
    ]


def short(label: str) -> str:
    """Return a label for a file's name: letters, digits, dots and plus signs."""
    return slug(label, keep="A-Z.+")


# ---------------------------------------------------------------------- configurations


def _product(
    base: Mapping[str, Any],
    fixed: Mapping[str, Any],
    axes: Mapping[str, Sequence[Option]],
    overrides: Sequence[tuple[str, str]],
) -> list[Point]:
    """Return all combinations of one option of each axis."""
    points = []
    varied = {name: options for name, options in axes.items() if options}
    for options in itertools.product(*varied.values()):
        config = copy.deepcopy(dict(base))
        for option in options:
            _start_from(config, option._start)
        for settings in (fixed, *(option.model_extra or {} for option in options)):
            for name, value in settings.items():
                put(config, name, copy.deepcopy(value))
        without = _override(config, overrides, [name for option in options for name in option.keep])
        labels = {axis: option.label for axis, option in zip(varied, options, strict=True)}
        points.append(Point(config, labels, without))
    return points


def _start_from(config: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Copy the sections of another configuration into one; names and seeds stay those of the
    sweep.
    """
    for section, content in other.items():
        if section == "data":
            config["data"] = {**config.get("data", {}), **copy.deepcopy(content)}
        elif section not in ("experiment", "logs", "seed_everything"):
            config[section] = copy.deepcopy(content)


def _override(
    config: dict[str, Any], overrides: Sequence[tuple[str, str]], own: Sequence[str]
) -> list[str]:
    """Put overrides into a configuration.

    Returns:
        Names of those that its classes do not have, or that are among its ``own`` settings.
    """
    without = []
    for name, text in overrides:
        plain = f"{name.replace('.init_args', '')}."
        kept = any(plain.startswith(f"{setting.replace('.init_args', '')}.") for setting in own)
        if kept or not fits(config, name):
            without.append(name)
            continue
        try:
            put(config, name, yaml.safe_load(text))
        except yaml.YAMLError as error:
            raise UsageError(f"--{name} is '{text}', which is not a YAML value") from error
    return without


def fits(config: Mapping[str, Any], name: str) -> bool:
    """Return whether the classes of a configuration have an option: a ridge head has no
    ``oversample``.

    A class that cannot be imported is taken to have every option: ``fit`` reports what is wrong
    with it.

    Args:
        config: a configuration.
        name: dotted name of the option.
    """
    section, *path = name.split(".")
    steps = [step for step in path if step not in INNER]
    if section == "data" and steps:
        return steps[0] in (arguments_of("cifnet_pl.data.datamodule.CIFNetDataModule") or ())
    node = config.get("model") if section == "model" else {}
    for step in steps:
        if not isinstance(node, Mapping):
            return False  # it leads into something without settings, such as a buffer that is null
        if "class_path" in node:
            known = arguments_of(str(node["class_path"]))
            if known is not None and step not in known:
                return False
            node = node.get("init_args") or {}
        node = node.get(step, {})
    return True


def put(config: dict[str, Any], name: str, value: Any) -> None:
    """Set a dotted name in a configuration; ``init_args`` may be left out of the name, as on the
    command line.

    A mapping is merged into the one that is there, unless it names a class: then it replaces it.

    Args:
        config: it is changed in place.
        name: dotted name.
        value: of the setting.

    Raises:
        UsageError: the name leads through something that has no settings.

    Example:
        >>> config = {"model": {"head": {"class_path": "RidgeHead", "init_args": {}}}}
        >>> put(config, "model.head.ridge", 0.1)
        >>> config["model"]["head"]["init_args"]
        {'ridge': 0.1}
    """
    *path, last = name.split(".")
    node: Any = config
    for step in path:
        node = _settings(node, step)
        node = node.setdefault(step, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise UsageError(f"{name} cannot be set, there is no {step} that has settings")
    node = _settings(node, last)
    old = node.get(last)
    if isinstance(old, dict) and isinstance(value, dict) and "class_path" not in value:
        for key, inner in value.items():
            put(old, str(key), inner)
    else:
        node[last] = value


def _settings(node: Any, name: str) -> Any:
    if isinstance(node, dict) and "class_path" in node and name not in INNER:
        if not isinstance(node.get("init_args"), dict):
            node["init_args"] = {}
        return node["init_args"]
    return node


# ---------------------------------------------------------------------- what is said of the points


def left_out_overrides(overrides: Sequence[tuple[str, str]], points: Sequence[Point]) -> list[str]:
    """Return a sentence for each override that does not hold for some points.

    Raises:
        UsageError: one that holds for no point.
    """
    sentences = []
    for name, _ in overrides:
        count = sum(name not in point.without for point in points)
        if not count:
            raise UsageError(
                f"--{name} fits no point: their classes have no such option, or the sweep keeps"
                " its own"
            )
        others = dict.fromkeys(point.title for point in points if name in point.without)
        if others:
            sentences.append(
                f"--{name} is for {count} of {len(points)} points, not for: {'; '.join(others)}"
            )
    return sentences


# ---------------------------------------------------------------------- running


class Job(NamedTuple):
    """A point and its experiment's folder."""

    point: Point
    folder: Path

    def run(self) -> Path | None:
        """Return the newest whole run of the experiment."""
        return complete_run(self.folder)

    def result(self) -> str:
        """Return the final accuracy of its whole run, in words."""
        from cifnet_pl.report.runs import read_run

        run = self.run()
        assert run is not None
        final = read_run(run).summary["A_K"]
        if final is None:
            return "A_K not measured"
        return f"A_K {final:.1f} %"

    def write(self) -> None:
        """Write the configuration; a report names what is missing by it, whatever becomes of the
        sweep.
        """
        config = {
            **self.point.config,
            "experiment": self.folder.name,
            "logs": str(self.folder.parent),
        }
        write_text(self.folder / POINT, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


def _run_all(jobs: Sequence[Job]) -> list[Path]:
    """Run all points that are not complete; return the folders of those that failed."""
    for job in jobs:
        if job.run() is None:
            job.write()
    # From here on SIGTERM is an exception, which stops the point that is running, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    failed = []
    for number, job in enumerate(jobs, 1):
        if job.run() is None:
            said = complete(job)
        else:
            said = f"complete already, {job.result()}"
        if job.run() is None:
            failed.append(job.folder)
        print(f"[{number}/{len(jobs)}] {job.folder.name}: {said}", flush=True)
    return failed


def complete(job: Job) -> str:
    """Run a point, and say what came of it; a file ``failure.txt`` in its folder says why it
    failed.
    """
    (job.folder / FAILURE).unlink(missing_ok=True)
    start = time.monotonic()
    log = job.folder / LOG
    before = log.stat().st_size if log.is_file() else 0
    code = run_process(job)
    if job.run() is not None:
        return f"done in {timedelta(seconds=round(time.monotonic() - start))}, {job.result()}"
    why = reason(code, log.read_bytes()[before:].decode("utf-8", errors="replace"))
    write_text(job.folder / FAILURE, why + "\n")
    return f"failed ({why})"


def run_process(job: Job) -> int:
    """Run ``fit`` as a process, starting from the last checkpoint if there is one; return the exit
    code.
    """
    command = [sys.executable, "-m", "cifnet_pl.cli.sweep", str(job.folder / POINT)]
    with (job.folder / LOG).open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            return process.wait()
        finally:
            process.terminate()
            process.wait()


def run_point(config: Path) -> int:
    """Learn from a configuration, starting from the last checkpoint if there is one; return the
    exit code.

    The lock of its folder is held meanwhile, even if the sweep is killed: the process of another
    sweep, or of the same one that is started again, waits here, and leaves alone what has become
    complete.
    """
    from cifnet_pl.__main__ import main

    # Lightning starts this module again for each further process of the run: they belong to the one
    # with the lock.
    with nullcontext() if "LOCAL_RANK" in os.environ else FileLock(config.parent / ".running"):
        if complete_run(config.parent) is not None:
            return 0
        return main(["fit", "--config", str(config), "--ckpt_path", "last"])


def reason(code: int, log: str) -> str:
    """Return why a process ended, in a few words.

    Args:
        code: its exit code as :mod:`subprocess` gives it, negative for a signal.
        log: what it wrote to its streams.
    """
    number = -code if code < 0 else code - 128
    if code < 0 or number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        return f"killed by {signal.Signals(number).name}"
    sentences = [
        found[1] or found[2] for line in log.splitlines() if (found := ERROR.match(line.strip()))
    ]
    if sentences:
        return f"exit code {code}: {printable(sentences[-1])}"
    return f"exit code {code}, without saying why"


if __name__ == "__main__":
    sys.exit(run_point(Path(sys.argv[1])))
