"""Check options that every way of serving has: who may ask, and what is promised."""

from __future__ import annotations

from pathlib import Path

from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.text import printable

SHORTEST_TOKEN = 16


def given_token(token: str | None, token_file: str | None) -> str | None:
    """Return the token that clients must send, None without one; UsageError for one that cannot be used."""
    if token is not None and token_file is not None:
        raise UsageError("--token and --token_file: give one of them")
    if token_file is not None:
        try:
            token = Path(token_file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read --token_file {printable(token_file)}: {error}") from error
    if token is None:
        return None
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"the token must have {SHORTEST_TOKEN} or more plain characters without spaces")
    return token


def check_shares(unknown: float | None, coverage: float | None) -> None:
    """Raise UsageError unless both are shares between 0 and 1, or None."""
    for option, share in (("unknown", unknown), ("coverage", coverage)):
        if share is not None and not 0 < share < 1:
            raise UsageError(f"--{option} is {share:g}, expected a share between 0 and 1, or null")
