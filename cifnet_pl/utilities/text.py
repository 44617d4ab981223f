"""Make text safe to print on one line, in a file or in a figure; tables and progress bars."""

import re
import shlex
import shutil
import sys
import textwrap
import time
import unicodedata
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TextIO, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

NEXT = "next: "
"""How the line of a suggested command begins."""

JOINERS = "\u200c\u200d"
"""Invisible characters that Persian words and emoji of several people hold."""


def printable(text: str) -> str:
    r"""Return ``text`` on one line; line breaks, control characters and other bytes are escaped.

    Example:
        >>> printable("two\nlines")
        'two\\nlines'
    """
    return "".join(
        c if c.isprintable() or c in JOINERS else repr(c)[1:-1] for c in text
    )


def utf8(text: str) -> str:
    """Return ``text`` as any format can hold it: bytes that are no UTF-8 become escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def shortened(text: str, longest: int) -> str:
    """Return ``text`` on one line, cut to ``longest`` characters that end in "…"."""
    plain = printable(text)
    if len(plain) <= longest:
        return plain
    return plain[: longest - 1] + "…"


def number(value: float | None, form: str = ".1f", unit: str = "") -> str:
    """Return a number for the screen; a dash if it was not measured.

    Args:
        value: the number, or None.
        form: as :func:`format` takes it.
        unit: what follows it.
    """
    if value is None:
        return "–"
    return f"{value:{form}}{unit}"


def number_of(count: int, one: str) -> str:
    """Return a count and its noun.

    Args:
        count: how many there are.
        one: the noun in the singular; its plural has an "s" more or, after an "s", "es".

    Example:
        >>> number_of(1, "image"), number_of(2, "class"), number_of(1200, "image")
        ('1 image', '2 classes', '1,200 images')
    """
    if count == 1:
        return f"{count:,} {one}"
    ending = "s"
    if one.endswith("s"):
        ending = "es"
    return f"{count:,} {one}{ending}"


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    names: Collection[int] = (0,),
) -> Table:
    """Tabulate texts for the screen.

    Args:
        header: of the columns.
        rows: their cells, as they are: nothing in them is markup.
        names: columns of names, which are broken on a narrow terminal; the others are numbers,
            which are not.
    """
    made = Table()
    for i, name in enumerate(header):
        if i in names:
            made.add_column(name, overflow="fold")
        else:
            made.add_column(name, justify="right", no_wrap=True, overflow="fold")
    for row in rows:
        made.add_row(*map(escape, row))
    return made


LISTED_NAMES = 5
"""Names in one sentence; the others are counted."""


def listed(items: Sequence[str], most: int = LISTED_NAMES) -> str:
    """Return the first items with commas between, and the number of the others.

    Args:
        items: names or sentences; each is shown on one line.
        most: number of those that are shown.

    Example:
        >>> listed(["ant", "bee", "cat"], 2)
        'ant, bee and 1 more'
    """
    text = ", ".join(map(printable, items[:most]))
    if len(items) > most:
        text += f" and {len(items) - most} more"
    return text


def print_text(text: str, stream: TextIO | None = None) -> None:
    """Print text, wrapped at words where the stream is a terminal.

    Lines of a log stay whole, and so does a suggested command (:func:`next_command`), which users
    copy.

    Args:
        text: one or more lines.
        stream: where to print it; None for the standard output.
    """
    stream = stream or sys.stdout
    columns = shutil.get_terminal_size().columns
    for line in text.splitlines():
        if stream.isatty() and not line.startswith(NEXT):
            line = textwrap.fill(
                line,
                columns,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        print(line, file=stream, flush=True)


def next_command(*words: str, trust: bool = False) -> str:
    """Return a line that suggests the next command, quoted for a shell.

    Args:
        words: the command after ``cifnet``.
        trust: whether it needs ``--trust``, for custom heads and backbones.

    Example:
        >>> next_command("info", "my model", trust=True)
        "next: cifnet info 'my model' --trust"
    """
    if trust:
        words += ("--trust",)
    return f"{NEXT}cifnet {shlex.join(words)}"


def now() -> str:
    """Return the date and time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")


def iso_now() -> str:
    """Return the date and time in UTC, to the second, as ISO 8601 writes them."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def shown(value: object) -> str:
    """Return a value from a file as a message may show it: quoted, short, on one line."""
    return f"'{printable(str(value)[:60])}'"


def slug(text: str, keep: str = "") -> str:
    """Return a text for the name of a file: small letters and digits, and underscores for all else.

    Args:
        text: any text.
        keep: other characters that stay, as in a set of a regular expression.

    Example:
        >>> slug("Exact ridge (0.1)".lower()), slug("Exact ridge (0.1)", "A-Z.")
        ('exact_ridge_0_1', 'Exact_ridge_0.1')
    """
    return re.sub(f"[^a-z0-9{keep}]+", "_", text).strip("_")


def is_or_are(count: int) -> str:
    """Return the verb that fits ``count``."""
    if count == 1:
        return "is"
    return "are"


def similar_spellings_message(
    names: Iterable[str],
    known: Sequence[str] = (),
) -> str | None:
    """Return a note about class names that differ only in spelling, such as ``Cup`` and ``cup``.

    Letter case, spaces, hyphens, underscores and Unicode's normal forms make no difference.

    Args:
        names: compared with each other and with ``known``.
        known: names that exist already; they are not compared with each other.

    Returns:
        The note, or None if there are no such names.
    """
    pairs = [
        f"'{printable(other)}' and '{printable(name)}'"
        for name, other in spelled_alike(names, known).items()
    ]
    if not pairs:
        return None
    return (
        f"note: class names {listed(pairs)} differ only in spelling: merge their folders if they"
        " are one class"
    )


def spelled_alike(names: Iterable[str], known: Sequence[str]) -> dict[str, str]:
    """Find new names that only differ in spelling from another one (:func:`bare`).

    Args:
        names, known: as for :func:`similar_spellings_message`.

    Returns:
        Name → the first other one with its spelling.
    """
    first = {bare(name): name for name in reversed(known)}
    alike = {}
    for name in names:
        other = first.setdefault(bare(name), name)
        if other != name and name not in known:
            alike[name] = other
    return alike


def bare(name: str) -> str:
    """Return a name without capitals, spaces, hyphens, underscores and Unicode's other forms."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return re.sub(r"[\s_-]", "", folded)


def one_line(error: BaseException, length: int = 300) -> str:
    """Return an error's message with its line breaks as spaces, cut to ``length`` characters.

    An error without a message is named by its type.
    """
    text = " ".join(str(error).split())
    return text[:length] or type(error).__name__


T = TypeVar("T")


LOG_SECONDS = 30
"""Seconds between two lines of a log that say how far a command is."""


def counted(
    items: Iterable[T],
    description: str,
    total: int | None = None,
) -> Iterator[T]:
    """Yield the same items, and show how many of them were consumed.

    That is a bar on a terminal, and in a log a line for every ``LOG_SECONDS``.

    Args:
        items: what to iterate over.
        description: the words in front of the number.
        total: number of items, for the bar.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(items, description, total, console=console, transient=True)
        return
    said = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        if time.monotonic() - said >= LOG_SECONDS:
            said = time.monotonic()
            print(f"{description}: {count:,}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------- in figures

FONT = "DejaVu Sans"
"""The font that comes with matplotlib; it has most alphabets and many symbols."""

# A box stands in the picture instead: hundreds of names would give hundreds of warnings.
warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)


def families(texts: Iterable[str]) -> list[str]:
    """Choose fonts for matplotlib's ``font.family``: its own, and others for what it lacks."""
    from matplotlib.font_manager import findfont, fontManager

    chosen = [FONT]
    left = {ord(c) for text in texts for c in printable(text)}
    left -= _characters(findfont(FONT))
    in_order = sorted(fontManager.ttflist, key=lambda entry: (entry.name, entry.fname))
    for entry in in_order:
        is_upright = entry.style == "normal" and entry.weight in (400, "normal")
        # matplotlib's font of last resort has a box for every character.
        if not left or not is_upright or entry.name.startswith("Last Resort"):
            continue
        found = left & _characters(entry.fname)
        if found:
            chosen.append(entry.name)
            left -= found
    return chosen


@lru_cache(maxsize=1024)
def _characters(path: str) -> frozenset[int]:
    """Return the characters of a font file; none of one that matplotlib cannot draw with."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(path).get_charmap())
    except (RuntimeError, OSError):  # a bitmap font
        return frozenset()
