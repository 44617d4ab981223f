"""Twenty runs, each killed twice at random moments, end as if nothing had happened."""

import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.command_line import BUFFER, assert_same_model, fit, learned, measurements
from tests.killing import killed_within

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("true_fsync")]
OPTIONS = [*BUFFER, "--data.batch_size", "4", "--seed_everything", "5"]
LAST = ["--ckpt_path", "last"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> tuple[Path, float]:
    """A run that nobody stopped, and how many seconds it took."""
    begin = time.monotonic()
    run = learned(tmp_path_factory.mktemp("reference"), *OPTIONS)
    return run, time.monotonic() - begin


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("head", ["CIFNetHead", "RidgeHead"])
def test_killed_at_random(seed, head, reference, tmp_path):
    run, seconds = reference
    draw = random.Random(seed)
    options = [*OPTIONS, "--data.num_workers", str(seed % 2)]
    if head != "CIFNetHead":
        options += ["--model.head", head]
        run = learned(tmp_path / "reference", *options)
    codes = []
    for _ in range(2):
        work = partial(fit, tmp_path / "killed", *options, *LAST)
        codes.append(killed_within(draw.uniform(0, seconds), work, tmp_path / "output"))
    assert set(codes) <= {-signal.SIGKILL, 0}, (tmp_path / "output").read_text()
    assert fit(tmp_path / "killed", *options, *LAST) == 0
    newest = max(
        (tmp_path / "killed" / "default").iterdir(),
        key=lambda path: (path / "summary.json").is_file(),
    )
    assert_same_model(newest, run)
    assert measurements(newest) == measurements(run)
    assert sorted(path.name for path in (newest / "checkpoints").iterdir()) == [
        "last.ckpt"
    ]
