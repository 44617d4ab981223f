"""What all heads have in common: capabilities, and the sizes of stored tensors."""

import pytest

from cifnet_pl.heads import HEADS, CIFNetHead, Head
from cifnet_pl.testing import WIDTH
from cifnet_pl.utilities.errors import UnsupportedError

EXACT = "merges merges_sites subtracts reduces"
ABILITIES = {
    "CIFNetHead": "merges reduces leaves_one_out tells_novelty uses_buffer counterexamples",
    "RidgeHead": f"{EXACT} leaves_one_out tells_novelty counterexamples",
    "ACILHead": f"{EXACT} leaves_one_out tells_novelty counterexamples",
    "DSALHead": "reduces leaves_one_out tells_novelty counterexamples",
    "SLDAHead": f"{EXACT} leaves_one_out tells_novelty counterexamples",
    "NCMHead": EXACT,
    "FeCAMHead": f"{EXACT} tells_novelty",
    "KLDAHead": f"{EXACT} leaves_one_out tells_novelty counterexamples",
    "RanPACHead": f"{EXACT} leaves_one_out tells_novelty counterexamples",
    "KNNHead": "merges merges_sites",
    "LogisticHead": "uses_buffer counterexamples",
    "SGDHead": "uses_buffer counterexamples",
}
ALL = [
    "merges",
    "merges_sites",
    "subtracts",
    "reduces",
    "leaves_one_out",
    "tells_novelty",
    "uses_buffer",
    "counterexamples",
]


def declared(head: Head | type[Head]) -> str:
    return " ".join(name for name in ALL if getattr(head, name))


def test_capabilities_are_those_of_the_table() -> None:
    assert {name: declared(kind) for name, kind in HEADS.items()} == ABILITIES


def test_an_argument_takes_capabilities_away_from_that_head_only() -> None:
    locked = CIFNetHead(WIDTH, update_past=False)
    assert declared(locked).split() == [
        each for each in ABILITIES["CIFNetHead"].split() if each != "tells_novelty"
    ]
    assert declared(CIFNetHead(WIDTH)) == ABILITIES["CIFNetHead"]
    with pytest.raises(UnsupportedError, match="CIFNetHead cannot"):
        locked.require("tells_novelty")
