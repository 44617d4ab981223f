"""Kills at random moments, and hostile requests: ``REQUESTS`` of the environment, or 50."""

import os
import random
import signal
import time
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings

from cifnet_pl.serving import gate
from cifnet_pl.serving.gate import Limits
from tests.killing import ended, start
from tests.serving.hostile import assert_refused_well, requests
from tests.serving.kills import assert_nothing_lost, change_for_ever
from tests.serving.services import becomes, client, tree

pytestmark = pytest.mark.usefixtures("true_fsync")

LIMITS = Limits(
    body_bytes=200_000, image_bytes=50_000, pixels=100_000, images=5, zip_bytes=60_000
)


def test_killed_while_it_changes(tmp_path):
    """What was acknowledged is there, and no half version is; the next process goes on."""
    folder = tmp_path / "w"
    output = tmp_path / "output"
    told = tmp_path / "told"
    process = start(partial(change_for_ever, folder, 0, told), output)
    becomes(lambda: told.exists() and told.stat().st_size)
    time.sleep(random.Random(0).uniform(0, 0.3))
    process.kill()
    assert ended(process) == -signal.SIGKILL, output.read_text()
    assert assert_nothing_lost(folder, told) > 1


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A service with small limits; it writes nothing outside, and keeps no upload."""
    place = tmp_path_factory.mktemp("attacked")
    (place / "outside").mkdir()
    with pytest.MonkeyPatch.context() as patch, client(place / "w") as http:
        patch.setattr(gate, "LIMITS", LIMITS)
        yield http
        assert {path.name for path in place.iterdir()} == {"outside", "w"}
        assert tree(place / "outside") == tree(place / "w" / "incoming") == set()
        assert http.get("/health").json() == {"ready": True}
        assert http.get("/summary").status_code == 200


@settings(
    max_examples=int(os.environ.get("REQUESTS", "50")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(request=requests())
def test_hostile_requests_get_one_sentence(request, attacked):
    assert_refused_well(attacked, request)
