"""The page of an audit, without an audit."""

import re

import pytest
from matplotlib.figure import Figure

from cifnet_pl.report.audit_page import Section, Shown, Side, audit_page, with_figure

HOSTILE = "<script>alert('1')</script> & \"x\""


@pytest.mark.parametrize(("inches", "kind"), [(6.4, "small"), (21.0, "wide")])
def test_a_picture_is_as_large_as_it_was_drawn_for(inches: float, kind: str) -> None:
    page = audit_page("Audit", [], [with_figure("Confused", [], Figure(figsize=(inches, 2), dpi=130))])
    assert re.findall(r'<div class="scroll"><img class="(\w+)" width="(\d+)"', page) == [
        (kind, str(round(96 * inches)))
    ]


def test_whatever_photos_and_classes_are_called_is_text() -> None:
    photo, side = Shown("", HOSTILE, HOSTILE), Side(HOSTILE, [Shown("", HOSTILE, HOSTILE)])
    table = {"header": (HOSTILE,), "rows": [(HOSTILE,)]}
    page = audit_page(HOSTILE, [HOSTILE], [Section(HOSTILE, [HOSTILE], pairs=[(side, side)], photos=[photo], **table)])
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; &amp; &#34;x&#34;") == 18
