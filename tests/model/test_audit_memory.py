"""What an audit keeps in memory of embeddings that lie on the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

MEASURED = """
import re, sys, threading, time
import numpy as np, torch
from cifnet_pl.model import audit as module
from cifnet_pl.statistics import near_copies as near

torch.set_num_threads(1)
module.AT_ONCE = near.BLOCK = module.FOR_TEMPERATURE = 512
largest = 0

def watch():
    global largest
    while True:  # pages of files do not count: they are the system's to take back
        status = open("/proc/self/status").read()
        largest = max(largest, int(re.search(r"RssAnon:\\s+(\\d+) kB", status)[1]))
        time.sleep(0.002)

def judge(rows):
    global largest
    z, labels = np.load(sys.argv[1], mmap_mode="r")[:rows], np.maximum(np.arange(rows) % 16 - 3, 0)
    largest = 0
    found, curve = module.audit(z, labels, list("abcdefghijklm")), module.learning_curve(z, labels, 13)
    assert len(found.own) == rows and curve.points[-1][0] == rows // 16
    return largest / 1024

threading.Thread(target=watch, daemon=True).start()
few, all_of_them = judge(2048), judge(16384)
print(all_of_them - few)
"""


@pytest.mark.system
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads memory from /proc")
def test_memory_does_not_grow_with_the_embeddings(tmp_path: Path):
    """Of 14 MB of embeddings more, 4 MB of one class and 900 of one burst, less than 6 MB are in memory at once."""
    z = np.random.default_rng(0).standard_normal((16384, 256), dtype=np.float32)
    z[2048::16] = z[0] + 0.01 * z[2048::16]
    np.save(tmp_path / "z.npy", z)
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "z.npy")]
    given_back = {**os.environ, "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}  # as soon as it is freed
    done = subprocess.run(command, env=given_back, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 6
