"""Name methods, settings and their values as tables and figures show them."""

from __future__ import annotations

from typing import Any

from cifnet_pl import heads

METHODS = {
    **{name: kind.title or name.removesuffix("Head") for name, kind in heads.HEADS.items()},
    "FinetuneModule": "Fine-tuning",
    "ReplayModule": "Replay",
    "ICaRLModule": "iCaRL",
    "WAModule": "WA",
    "PODNetModule": "PODNet",
    "DERModule": "DER",
    "FOSTERModule": "FOSTER",
    "MEMOModule": "MEMO",
    "CREATEModule": "CREATE",
    "TagFexModule": "TagFex",
}
"""Class of a head, or of a module that trains the network → its name in tables, in the order of the rows."""

JOINT = "Joint logistic regression (bound)"
"""Logistic regression on all embeddings ever seen: a reference, not a way to learn a stream."""

WORDS: dict[tuple[str, Any], str] = {
    ("buffer", None): "no buffer",
    ("buffer", "yes"): "with buffer",
    ("buffer.oversample", False): "no oversampling",
    ("buffer.oversample", True): "oversampling",
    ("head.update_past", False): "locked old neurons",
    ("head.update_past", True): "updated old neurons",
    ("head.weighting", "released"): "released weighting",
    ("head.weighting", "derivative"): "derivative weighting",
    ("buffer.strategy", "random"): "random buffer",
    ("buffer.strategy", "herding"): "herding buffer",
    ("buffer.strategy", "kmeans"): "k-means buffer",
    ("buffer.strategy", "centroid"): "centroid buffer",
    ("head.ridge", "gcv"): "λ by GCV",
    ("calibrate", True): "calibrated",
    ("calibrate", False): "not calibrated",
}
"""(setting, value) → how a method's name says so; other settings are named by :func:`words`."""

LACKING = (("buffer", None), ("buffer.oversample", False), ("head.update_past", False), ("head.weighting", "released"))
"""Settings that a method's name always mentions, whether or not there is anything to compare it with."""

SHORT = {"head.ridge": "λ", "buffer.capacity": "buffer", "buffer.per_class": "buffer per class"}
"""Setting → its name before a value."""

LONG = {
    "head.ridge": "ridge λ",
    "head.width": "width of the random projection",
    "head.epsilon": "clipping ε",
    "buffer.capacity": "size of the buffer (embeddings)",
    "buffer.per_class": "size of the buffer (embeddings per class)",
    "buffer.strategy": "selection of the buffer",
    "buffer.oversample": "buffer weighted up to the new classes",
    "head.update_past": "old neurons see new tasks",
    "head.weighting": "weighting of samples",
    "head.dtype": "precision of the sums",
    "head.balanced": "classes weighted alike",
    "head.transform": "transform of the embedding",
    "head.decision": "decision rule",
    "head.metric": "distance",
    "head.projection": "given projection",
    "head.neighbours": "neighbours",
    "engine": "engine of the network",
    "data.image_size": "size of the images (pixels)",
    "trainer.precision": "precision of the network",
}
"""Setting → its name as a heading or the label of an axis."""


SAID_BY_HEADING = ("buffer.oversample", "head.update_past", "head.balanced", "buffer.per_class")
"""Settings whose heading says what yes and no mean."""


def method_name(head: str) -> str:
    """Return the name of a head's or module's class in tables."""
    return METHODS.get(head, head.removesuffix("Head").removesuffix("Module"))


def words(key: str, value: Any) -> str:
    """Return a setting and its value as part of a method's name.

    Args:
        key: dotted name of the setting.
        value: of the setting.

    Example:
        >>> words("head.ridge", 0.01)
        'λ 0.01'
    """
    known = WORDS.get((key, value)) if isinstance(value, str | bool | None) else None
    if known is not None:
        return known
    name = SHORT.get(key) or _last(key)
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {'none' if value is None else value}"


def heading(key: str) -> str:
    """Return a setting as a heading or the label of an axis.

    Example:
        >>> heading("head.width")
        'width of the random projection'
    """
    return LONG.get(key) or _last(key)


def value_name(key: str, value: Any) -> str:
    """Return a setting's value as it is shown under its heading.

    Args:
        key: dotted name of the setting.
        value: of the setting.
    """
    if key == "buffer.strategy":
        return strategy_name(value)
    if key in SAID_BY_HEADING and isinstance(value, bool | None):
        return {True: "yes", False: "no", None: "none"}[value]
    plain = "none" if value is None else str(value)
    text = WORDS.get((key, value), plain) if isinstance(value, str | bool | None) else plain
    return text.removeprefix("λ ").removesuffix(" weighting")  # the heading has these words


def strategy_name(strategy: object) -> str:
    """Return the name of a way to select the buffer."""
    return WORDS.get(("buffer.strategy", strategy), str(strategy)).removesuffix(" buffer")


def _last(key: str) -> str:
    return key.split(".")[-1].replace("_", " ")
