"""Nouns and verbs that fit their number."""

import pytest

from cifnet_pl.utilities.text import about_spellings, is_or_are, number_of


@pytest.mark.parametrize(
    ("count", "words", "expected"),
    [
        (0, ("photo",), "0 photos"),
        (1, ("photo",), "1 photo"),
        (1, ("class",), "1 class"),
        (2, ("class",), "2 classes"),
        (1234, ("other photo",), "1,234 other photos"),
        (1, ("photo has", "photos have"), "1 photo has"),
        (3, ("photo has", "photos have"), "3 photos have"),
    ],
)
def test_a_count_and_its_noun(count, words, expected):
    assert number_of(count, *words) == expected


@pytest.mark.parametrize(
    ("names", "known", "pairs"),
    [
        (["cup", "Cup"], [], ["'cup' and 'Cup'"]),
        (["fish"], ["Fish", "cup"], ["'Fish' and 'fish'"]),
        (["a b", "a_b", "A-B "], [], ["'a b' and 'a_b'", "'a b' and 'A-B '"]),
        (["Gr\u00fcn", "Gru\u0308n", "STRASSE", "straße"], [], ["'Grün' and 'Gru\u0308n'", "'STRASSE' and 'straße'"]),
        (["cup"], ["cup"], []),
        (["cup", "cups", "1", "10"], ["Cub"], []),
    ],
)
def test_class_names_that_differ_only_in_how_they_are_written(names, known, pairs):
    found = about_spellings(names, known)
    assert (found is None) == (not pairs)
    for pair in pairs:
        assert pair in found


def test_the_verb_of_a_count():
    assert [is_or_are(count) for count in (0, 1, 2)] == ["are", "is", "are"]
