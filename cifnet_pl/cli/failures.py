"""Find out why a process ended without doing its work: a signal, an exit code, or too little memory."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from cifnet_pl.utilities.text import printable

NO_MEMORY = re.compile(r"\bMemoryError\b|OutOfMemoryError|out of memory|not enough memory", re.IGNORECASE)
OWN_ERROR = re.compile(r"^cifnet: error: (.*)")
LAST_OF_TRACEBACK = re.compile(r"^([\w.]*(?:Error|Exception|Interrupt|Exit)\b.*)")
COUNTERS = ("memory.events", "memory.oom_control", "memory/memory.oom_control")
"""Files of the processes' control group, below its root, that count what the system killed for memory."""


def reason(code: int, log: str, killed_for_memory: bool = False) -> str:
    """Return why a process ended, in a few words.

    Args:
        code: its exit code as :mod:`subprocess` gives it, negative for a signal.
        log: what it wrote to its streams.
        killed_for_memory: whether the system has killed a process for memory meanwhile.
    """
    number = -code if code < 0 else code - 128
    lines = [line.strip() for line in log.splitlines()]
    if code < 0 or (128 < code < 160 and number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)):
        name = signal.Signals(number).name if number in {int(s) for s in signal.Signals} else f"signal {number}"
        if number == signal.SIGKILL and killed_for_memory:
            return f"out of memory: the system killed it ({name})"
        return f"killed by {name}"
    sentences = [match[1] for line in lines if (match := OWN_ERROR.match(line) or LAST_OF_TRACEBACK.match(line))]
    sentence = sentences[-1] if sentences else None
    memory = next((line for line in reversed(lines) if NO_MEMORY.search(line)), None)
    if memory is not None:
        return f"out of memory (exit code {code}): {printable(sentence or memory)}"
    return f"exit code {code}: {printable(sentence)}" if sentence else f"exit code {code}, without saying why"


def memory_kills(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how often the system has killed a process of this control group for memory.

    Args:
        root: of the control groups' files.

    Returns:
        None if the system does not say.
    """
    for name in COUNTERS:
        try:
            text = (root / name).read_text(encoding="utf-8")
        except OSError:
            continue
        match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        if match:
            return int(match[1])
    return None
