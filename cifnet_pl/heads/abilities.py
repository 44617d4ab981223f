"""What a head can do beyond learning and scoring, declared by its class."""

from __future__ import annotations

from typing import Literal

from cifnet_pl.utilities.errors import UnsupportedError

Ability = Literal["merges", "pools", "subtracts", "reduces", "leaves_one_out"]

ACTIONS: dict[Ability, str] = {
    "merges": "merge",
    "pools": "merge whole sites, or add samples to a class that is learned already",
    "subtracts": "subtract",
    "reduces": "be reduced over processes",
    "leaves_one_out": "leave samples out",
}
"""Ability → what a head without it cannot do, as error messages say it."""


class Abilities:
    """Abilities of a head as attributes; a head class sets them, and a head's arguments may take one away.

    Attributes:
        merges: whether ``merge_`` adds the statistics of another process or site.
        pools: whether ``merge_`` of whole sites equals one head that saw the samples of both. Then samples of classes
            that are learned already can be added too.
        subtracts: whether ``subtract_`` takes statistics out again.
        reduces: whether ``reduce_`` sums a task over processes, so that several can learn together.
        leaves_one_out: whether ``leave_one_out`` has a closed form, so that the head can be calibrated.
        uses_buffer: whether ``observe_past`` changes the head, so that a calibration buffer is worth its memory.
        counterexamples: whether a class's samples change what is known of other classes, so that something stays
            when the class is removed.
        reason: why the head cannot do what it cannot.
    """

    merges: bool = False
    pools: bool = False
    subtracts: bool = False
    reduces: bool = False
    leaves_one_out: bool = False
    uses_buffer: bool = False
    counterexamples: bool = True
    reason: str = "its state is not a sum over samples"

    def require(self, ability: Ability) -> None:
        """Raise UnsupportedError, in a sentence that says why, unless this head has the ``ability``."""
        if not getattr(self, ability):
            why = "it has no closed form for that, so it cannot be calibrated"
            raise self._cannot(ACTIONS[ability], why if ability == "leaves_one_out" else self.reason)

    def _cannot(self, what: str, why: str) -> UnsupportedError:
        return UnsupportedError(f"{type(self).__name__} cannot {what}: {why}")
