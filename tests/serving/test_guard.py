"""The limit of requests of each client."""

from __future__ import annotations

from cifnet_pl.serving import app as guard
from cifnet_pl.serving.app import Rate


def test_a_reserve_of_two_seconds_that_fills_again():
    now = [0.0]
    rate = Rate(2.0, lambda: now[0])
    assert [rate.allows("a") for _ in range(5)] == [True, True, True, True, False]
    assert rate.allows("b")
    now[0] = 0.6
    assert [rate.allows("a"), rate.allows("a")] == [True, False]
    now[0] = 100.0
    assert [rate.allows("a") for _ in range(5)] == [True, True, True, True, False]
    assert all(Rate(0).allows("a") for _ in range(100))


def test_the_oldest_client_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(guard, "CLIENTS", 2)
    rate = Rate(0.5, lambda: 0.0)
    assert [rate.allows(client) for client in "abca"] == [True, True, True, True]
    assert not rate.allows("c")
