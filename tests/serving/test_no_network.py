"""The page in a browser, with a server, in a network namespace that has nothing but its
loopback.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import environment
from tests.serving import browsing  # noqa: F401, skips where no browser is installed

ALONE = ("unshare", "--user", "--map-root-user", "--net", "sh", "-c")
LOOPBACK = "ip link set lo up"
OUTSIDE = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
PAGE = "tests/serving/test_page.py::test_drop_name_learn_undo[desktop]"


def alone(command: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command without any network but the loopback."""
    return subprocess.run(
        [*ALONE, f"{LOOPBACK} && {command}", "sh", *words],
        cwd=Path(__file__).parents[2],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.system
@pytest.mark.timeout(700)
def test_the_page_needs_no_network() -> None:
    if shutil.which("unshare") is None or alone("true").returncode:
        pytest.skip(
            "no network namespace can be made here: unshare -rn is not allowed, or ip is not"
            " installed"
        )
    assert "unreachable" in alone('exec "$@"', sys.executable, "-c", OUTSIDE).stderr
    done = alone(
        'exec "$@"',
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        PAGE,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
