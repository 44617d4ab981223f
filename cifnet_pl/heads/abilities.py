"""Declare what a head can do beyond learning and scoring, as attributes of its class."""

from __future__ import annotations

from typing import Literal

from cifnet_pl.utilities.errors import UnsupportedError

Ability = Literal["merges", "pools", "subtracts", "reduces", "leaves_one_out", "tells_novelty"]

ACTIONS: dict[Ability, str] = {
    "merges": "merge",
    "pools": "merge whole sites, or add samples to a class that is learned already",
    "subtracts": "subtract",
    "reduces": "be reduced over processes",
    "leaves_one_out": "leave samples out",
    "tells_novelty": "tell unknown things from known ones",
}
"""Ability → what a head without it cannot do, as error messages say it."""

REASONS: dict[Ability, str] = {
    "leaves_one_out": "it has no closed form for that, so it cannot be calibrated",
    "tells_novelty": "it keeps no Gram matrix of all samples and their class sums; RidgeHead does",
}
"""Ability → why a head has none, where that is the same for all heads; else the head's own ``reason``."""


class Abilities:
    """Abilities of a head as attributes; a head class sets them, and a head's arguments may take one away.

    Attributes:
        merges: whether ``merge_`` adds the statistics of another process or site.
        pools: whether ``merge_`` of whole sites equals one head that saw the samples of both. Then samples of classes
            that are learned already can be added too.
        subtracts: whether ``subtract_`` takes statistics out again.
        reduces: whether ``reduce_`` sums a task over processes, so that several can learn together.
        leaves_one_out: whether ``leave_one_out`` has a closed form, so that the head can be calibrated.
        tells_novelty: whether ``novelty`` says how foreign a sample is, which takes a Gram matrix and class sums of
            the same samples.
        decides: whether ``decide`` chooses between ways to score, by stored samples.
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
    tells_novelty: bool = False
    decides: bool = False
    uses_buffer: bool = False
    counterexamples: bool = True
    reason: str = "its state is not a sum over samples"

    def require(self, ability: Ability) -> None:
        """Check that this head has an ability.

        Raises:
            UnsupportedError: it has not; the sentence says why.
        """
        if not getattr(self, ability):
            raise self._cannot(ACTIONS[ability], REASONS.get(ability, self.reason))

    def _cannot(self, action: str, why: str) -> UnsupportedError:
        return UnsupportedError(f"{type(self).__name__} cannot {action}: {why}")
