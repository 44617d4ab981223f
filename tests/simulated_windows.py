"""A process as on Windows: what only POSIX keeps is missing, or refused.

Missing are the modules ``fcntl``, ``pwd``, ``grp``, ``resource`` and ``termios``, functions of
``os``, and signals. Refused are: to rename or remove a file that this process has open or mapped,
to rename a folder onto another one or one with open files, to open a folder, links, and names that
Windows does not keep or takes for another one. What native libraries do with files is not seen,
and paths stay those of POSIX.
"""

from __future__ import annotations

import builtins
import errno
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

MODULES = ("fcntl", "pwd", "grp", "resource", "termios")
FUNCTIONS = (
    *("fork", "forkpty", "link", "symlink", "sched_getaffinity", "getuid", "geteuid"),
    *("getgid", "mkfifo", "fchmod", "chown", "getloadavg"),
)
SIGNALS = ("SIGHUP", "SIGQUIT", "SIGALRM", "SIGPIPE")

RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\.|$)")
UNKEPT = re.compile(r'[<>:"\\|?*\x00-\x1f]|[. ]$')


def simulate() -> None:
    """Make this process one of Windows, for good; call this before the package is imported."""
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in FUNCTIONS:
        delattr(os, name)
    for name in SIGNALS:
        delattr(signal, name)
    os.supports_dir_fd.clear()  # so that shutil removes folders by their paths
    sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event == "os.rename":
        old, new = map(_path, args[:2])
        _require_closed(old)
        _require_closed(new)
        if new.is_dir():
            raise PermissionError(errno.EACCES, "Access is denied", str(new))
        _require_name(new)
    elif event in ("os.remove", "os.rmdir"):
        _require_closed(_path(args[0]))
    elif event == "os.mkdir":
        _require_name(_path(args[0]))
    elif event == "open" and isinstance(args[0], str | bytes | os.PathLike):
        path = _path(args[0])
        if args[1] is None and path.is_dir() and not args[2] & os.O_DIRECTORY:
            raise PermissionError(errno.EACCES, "Access is denied", str(path))
        if args[2] & os.O_CREAT and path.parent != Path("/dev"):
            _require_name(path)


def _path(given: Any) -> Path:
    return Path(os.path.abspath(os.fsdecode(given)))


def _require_closed(path: Path) -> None:
    """Refuse what this process has open or mapped, or a folder that holds it."""
    targets = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            targets.add(os.readlink(f"/proc/self/fd/{entry}"))
        except OSError:
            continue  # the descriptor of this list
    with builtins.open("/proc/self/maps", encoding="utf-8") as maps:
        targets.update(line.split(maxsplit=5)[-1].strip() for line in maps)
    for target in targets:
        if path == Path(target) or path in Path(target).parents:
            raise PermissionError(errno.EACCES, "The file is in use", str(path))


def _require_name(path: Path) -> None:
    """Refuse a name that Windows does not keep, or takes for that of another file."""
    if RESERVED.match(path.name) or UNKEPT.search(path.name):
        raise OSError(errno.EINVAL, "The file name is incorrect", str(path))
    if not path.exists() and path.parent.is_dir():
        for name in os.listdir(path.parent):
            if name.casefold() == path.name.casefold():
                raise FileExistsError(errno.EEXIST, "It exists", str(path))
