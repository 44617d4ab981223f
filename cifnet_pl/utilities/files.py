"""Write files atomically: a file is complete or absent, whatever happens meanwhile.

Also: locks, YAML and CSV, and the package's configurations.
"""

import csv
import errno
import hashlib
import io
import json
import os
import platform
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import yaml
from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from cifnet_pl.utilities.errors import CifnetError, UsageError, explained

LONGEST_WHOLE_NAME = 220
"""Bytes of a name that hidden files beside it repeat: file systems allow 255."""

RECOMMENDED = "folder"
"""The configuration of ``fit --data.root IMAGES`` alone."""

DISK_ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors by which a disk says that it has not stored what was written."""

WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of file systems that have no ``flock``, such as some of NFS."""

MACHINE = f"{zlib.crc32(platform.node().encode()):08x}"
"""A short name of this machine for names of files."""

RENAME_WAITS = (0.0, 0.1, 0.4, 1.0)
"""Seconds before each attempt to rename a file over one that another program reads."""


SWEEP_SECONDS = 1.0
"""Time within which a lock is got that no process holds longer than to remove it."""


def expanded(path: Path | str) -> Path:
    """Replace a leading ``~`` by the home folder; names that only begin with ``~`` stay.

    Raises:
        UsageError: this account has no home folder, as in some containers.
    """
    whole = Path(os.path.expanduser(path))
    if whole.parts[:1] == ("~",):
        raise UsageError(
            f"{path}: this account has no home folder: set the variable HOME, or give a path"
            " without ~"
        )
    return whole


def write_atomic(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write to a temporary file beside ``path``, flush it to the disk, and rename it.

    Args:
        path: the file; folders above it are made.
        write: function that writes the content to an open binary file.

    Raises:
        CifnetError: the disk is full or not writable; an old file at ``path`` is left as it was.
            Where only the folder cannot be flushed, the sentence says that the file is written.
    """
    temporary = hidden_beside(path)
    is_writing = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _swept(path.parent)
        with temporary.open("xb") as file:
            is_writing = True
            write(file)
            is_writing = False
            file.flush()
            os.fsync(file.fileno())
        _rename(temporary, path)
    except (OSError, RuntimeError) as error:
        refusal = _of_the_system(error)
        of_another_file = is_writing and refusal and refusal.filename is not None
        if refusal is None or of_another_file:
            raise
        raise _not_written(path, refusal) from error
    finally:
        with suppress(OSError):  # it has its name, or was never made
            temporary.unlink()


def _not_written(path: Path, error: OSError) -> CifnetError:
    """Return the error of a file or folder that the system refuses to write."""
    return CifnetError(
        f"cannot write {path}: {error.strerror or error}; nothing was changed"
    )


def hidden_beside(path: Path, ending: str = "") -> Path:
    """Return a hidden file beside ``path``; its name holds that of ``path`` unless it is long.

    Args:
        path: of the other file.
        ending: of the name; by default one that no other process takes, and that tells who made it.
    """
    name = path.name
    if not ending:
        unique = uuid4().hex[:8]
        ending = f"{MACHINE}-{os.getpid()}-{unique}.tmp"
    if len(os.fsencode(name)) > LONGEST_WHOLE_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return path.with_name(f".{name}.{ending}")


def _rename(temporary: Path, path: Path) -> None:
    """Rename a file or folder, and flush its entry to disk, so that it survives a power cut.

    Where another program has the old one open, this waits a little: Windows refuses that, even for
    a moment's reading by a virus scanner. Windows, and file systems of networks and virtual
    machines (SMB, virtiofs), flush files alone.

    Raises:
        CifnetError: it is open for longer, or the disk is full or damaged.
    """
    for seconds in RENAME_WAITS:
        time.sleep(seconds)
        try:
            os.replace(temporary, path)
            break
        except PermissionError as error:
            refusal = error
    else:
        raise CifnetError(
            f"cannot write {path}: {refusal.strerror}; nothing was changed; close it in other"
            " programs, and give this account access to it"
        ) from refusal
    try:
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            return
        raise CifnetError(
            f"{path} is written, but not known to be on the disk: {error.strerror or error}; write"
            " it again once the disk is well"
        ) from error


def remove_leftovers(folder: Path, ending: str = "") -> None:
    """Remove what killed processes left in a folder: temporary files, and locks that none holds.

    Temporary files of other machines stay, as their processes cannot be seen from here.

    Args:
        folder: where they are.
        ending: of the files whose locks are removed, as other programs have locks, too; empty for
            none.
    """
    for path in folder.glob(".*.tmp"):
        maker = re.search(rf"\.{MACHINE}-(\d+)-[0-9a-f]{{8}}\.tmp$", path.name)
        if maker and not _is_running(int(maker[1])):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    if not ending:
        return
    for path in folder.glob(f".*{ending}.lock"):
        with suppress(OSError, Timeout), FileLock(path, blocking=False):
            os.unlink(path)


def _is_running(process: int) -> bool:
    if os.name == "nt":  # where signal 0 ends a process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another account's
        return True
    return True


_swept = cache(remove_leftovers)


def _of_the_system(error: BaseException | None) -> OSError | None:
    """Return the system's own error behind ``error``: torch.save hides that of a full disk."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def refuse_pointer(file: Path | bytes) -> None:
    """Raise ValueError for a file, or the content of one, in whose place Git LFS left a pointer."""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            file = opened.read(100)
    if file.startswith(b"version https://git-lfs."):
        raise ValueError(
            "a Git LFS pointer, not the file: get the file by git lfs pull"
        )


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content``, atomically."""
    write_atomic(path, lambda file: file.write(content))


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, atomically; undecodable file names keep their bytes."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def rendered(template: Path, **values: Any) -> str:
    """Fill in a file that is a template of Jinja, for plain text.

    Args:
        template: the file.
        values: by the names that it has for them.
    """
    import jinja2  # here: few commands fill in a template

    options: Any = {
        "trim_blocks": True,
        "keep_trailing_newline": True,
        "undefined": jinja2.StrictUndefined,
    }
    source = template.read_text(encoding="utf-8")
    return str(jinja2.Template(source, **options).render(values))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds, from plain tags only; none for an empty file.

    Args:
        path: the file.

    Raises:
        UsageError: no such file, it is not YAML, or it holds no mapping.
    """
    if not path.is_file():
        raise UsageError(f"file {path} does not exist")
    wrong = (yaml.YAMLError, UnicodeDecodeError, RecursionError)
    with explained(UsageError, f"file {path} is not YAML", *wrong):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict | None):
        raise UsageError(f"file {path} holds no sections (name: …)")
    return content or {}


class ConfigDumper(yaml.SafeDumper):
    """Quotes each text that a reader would take for a number, such as the class name ``1e5``.

    The command line reads YAML 1.2, in which more texts are numbers than in PyYAML's YAML 1.1.
    """


ConfigDumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"([-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+|\.[0-9_]+)$"),
    list("-+.0123456789"),
)
# Members of enumerations, such as the interval of Lightning's Timer, are texts, too.
ConfigDumper.add_multi_representer(str, yaml.SafeDumper.represent_str)


def dump_yaml(content: Any) -> str:
    """Return YAML text that reads back as it is, by the command line and by :func:`read_yaml`.

    Example:
        >>> print(dump_yaml({"names": ["1e5", "ant"]}), end="")
        names:
        - '1e5'
        - ant
    """
    text = yaml.dump(content, Dumper=ConfigDumper, sort_keys=False, allow_unicode=True)
    return str(text)


def config_files() -> dict[str, Path]:
    """Return the file of each configuration by name, such as ``heads/ridge``; top folder first."""
    package = Path(__file__).parents[1]
    folder = package / "configs"
    if not folder.is_dir():  # a checkout, not an installation
        folder = package.parent / "configs"
    paths = [*sorted(folder.glob("*.yaml")), *sorted(folder.glob("*/**/*.yaml"))]
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to one level; an empty mapping becomes None.

    Args:
        config: nested mappings.
        prefix: of all keys.

    Example:
        >>> flatten({"head": {"ridge": 1.0}, "buffer": {}})
        {'head.ridge': 1.0, 'buffer': None}
    """
    flat = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if not isinstance(value, Mapping):
            flat[name] = value
        elif value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = None
    return flat


def write_json(path: Path, content: Any) -> None:
    """Write strict JSON, atomically: None is null, and NaN is refused."""
    text = json.dumps(content, indent=2, allow_nan=False)
    write_text(path, text + "\n")


def to_csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return CSV text; None is an empty cell, and short rows are filled with empty cells.

    Args:
        header: names of the columns.
        rows: the cells of each row.

    Example:
        >>> print(to_csv(["task", "A_k"], [[1, 97.5], [2]]), end="")
        task,A_k
        1,97.5
        2,
    """
    lines = []
    for row in (header, *rows):
        missing = [None] * (len(header) - len(row))
        lines.append(csv_line([*row, *missing]))
    return "".join(lines)


def csv_line(cells: Iterable[Any]) -> str:
    """Return a line of a CSV file, with its end."""
    line = io.StringIO()
    # Before Python 3.13 only characters of the line's own end are quoted, and a file name may hold
    # either.
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    text = line.getvalue().removesuffix("\r\n")
    return f"{text}\n"


def list_cell(values: Iterable[str]) -> str:
    r"""Return a list as one cell of a table: semicolons between values, those within are escaped.

    Example:
        >>> print(list_cell(["bolt; M4", "nut"]))
        bolt\; M4; nut
    """
    escaped = [value.replace("\\", r"\\").replace(";", r"\;") for value in values]
    return "; ".join(escaped)


def read_list_cell(cell: str) -> list[str]:
    r"""Return the values that :func:`list_cell` made a cell of.

    Example:
        >>> read_list_cell(r"bolt\; M4; nut")
        ['bolt; M4', 'nut']
    """
    pieces = re.findall(r"(?s)(?:[^\\;]|\\.)+", cell)
    others = [piece.removeprefix(" ") for piece in pieces[1:]]
    values = [*pieces[:1], *others]
    return [re.sub(r"(?s)\\(.)", r"\1", value) for value in values]


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Open a temporary folder to write files into, which is renamed to ``target`` at the end.

    Args:
        target: must be absent or empty.

    Yields:
        The temporary folder; it is removed where an error ends the block.

    Raises:
        CifnetError: ``target`` has files already, the disk is full or not writable, or the block
            raised an OSError.
    """
    temporary = hidden_beside(target)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if target.is_dir():  # empty; Windows renames no folder onto another one
            target.rmdir()
        _rename(temporary, target)
    except OSError as error:
        raise _not_written(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def exclusive(output: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock on ``output`` within the block; the system releases it for a killed process.

    Processes that are forked meanwhile, such as those that decode images, do not hold it.

    Args:
        output: a file or a folder; the lock is a hidden file beside it.
        wait: whether to wait for another process that is writing it.

    Raises:
        UsageError: another process is writing it.
        CifnetError: the folder that holds it cannot be written.
    """
    place = Path(os.path.abspath(output))  # "." has no name
    # Others that remove leftovers hold it for a moment.
    patience = -1.0 if wait else SWEEP_SECONDS
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(place.parent, place.suffix)
        lock = _acquired(place, patience)
    except Timeout:
        raise UsageError(
            f"another process is writing {output}: wait for it, or choose another output"
        ) from None
    except OSError as error:
        raise _not_written(output, error) from error
    try:
        yield
    finally:
        # Removed while it is held: a waiting process sees that the file is gone. Windows keeps a
        # file that is open.
        with suppress(OSError):
            os.unlink(lock.lock_file)
        lock.release()


def _acquired(place: Path, patience: float) -> BaseFileLock:
    """Return a lock on a place that is held.

    Where the file system has no ``flock``, a file is the lock as long as it exists. One that a
    killed process left is recognised on the machine where it ran.

    Args:
        place: what is written.
        patience: seconds to wait for it; negative to wait for ever.

    Raises:
        Timeout: another process holds it.
        OSError: its file cannot be written.
    """
    lock = FileLock(hidden_beside(place, "lock"), timeout=patience)
    try:
        lock.acquire()
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        os.unlink(lock.lock_file)
        lock = SoftFileLock(hidden_beside(place, "held"), timeout=patience)
        lock.acquire()
    return lock
