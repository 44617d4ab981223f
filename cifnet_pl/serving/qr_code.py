"""Draw a QR code (ISO/IEC 18004) of a short text on a terminal.

Bytes, error correction level L (7 %), versions 1 to 5: one block of code words, up to 106 bytes.
"""

from __future__ import annotations

from cifnet_pl.utilities.errors import UsageError

DATA_WORDS = (19, 34, 55, 80, 108)
"""Code words of data, by version."""

CHECK_WORDS = (7, 10, 15, 20, 26)
"""Code words of error correction, by version."""

FORMAT_BITS = 0b111011111000100
"""Format information of level L and mask 0, with its own error correction."""

LARGEST_TEXT = DATA_WORDS[-1] - 2


def _field_tables() -> tuple[list[int], list[int]]:
    """Return the powers of 2 in GF(256) modulo x⁸+x⁴+x³+x²+1, and their logarithms."""
    powers = [1] * 512
    logarithms = [0] * 256
    value = 1
    for exponent in range(255):
        powers[exponent] = value
        powers[exponent + 255] = value
        logarithms[value] = exponent
        value <<= 1
        if value > 255:
            value ^= 0x11D
    return powers, logarithms


POWERS, LOGARITHMS = _field_tables()


def _product(a: int, b: int) -> int:
    """Return a product in GF(256)."""
    if a == 0 or b == 0:
        return 0
    return POWERS[LOGARITHMS[a] + LOGARITHMS[b]]


def check_words(data: list[int], count: int) -> list[int]:
    """Return the code words of a Reed-Solomon code: the remainder of a division of polynomials."""
    generator = [1]
    for exponent in range(count):
        longer = [*generator, 0]
        for place, factor in enumerate(generator):
            longer[place + 1] ^= _product(factor, POWERS[exponent])
        generator = longer
    remainder = [*data, *[0] * count]
    for place in range(len(data)):
        factor = remainder[place]
        for offset, coefficient in enumerate(generator):
            remainder[place + offset] ^= _product(coefficient, factor)
    return remainder[len(data) :]


def code_words(text: bytes, version: int) -> list[int]:
    """Return all code words of a text: mode, length, bytes, padding and error correction."""
    bits = f"0100{len(text):08b}" + "".join(f"{byte:08b}" for byte in text) + "0000"
    words = [int(bits[start : start + 8], 2) for start in range(0, len(bits), 8)]
    padding = (0xEC, 0x11)
    missing = DATA_WORDS[version - 1] - len(words)
    words += [padding[place % 2] for place in range(missing)]
    return words + check_words(words, CHECK_WORDS[version - 1])


class QrCode:
    """A QR code.

    Args:
        text: at most 106 bytes in UTF-8.

    Attributes:
        modules: rows of dark (True) and light squares.

    Raises:
        UsageError: the text is too long.
    """

    def __init__(self, text: str):
        content = text.encode()
        if len(content) > LARGEST_TEXT:
            raise UsageError(
                f"a QR code of {len(content)} bytes is too large: use at most {LARGEST_TEXT}"
            )
        version = 1
        while DATA_WORDS[version - 1] < len(content) + 2:
            version += 1
        self.size = 17 + 4 * version
        self.modules = [[False] * self.size for _ in range(self.size)]
        self._fixed = [[False] * self.size for _ in range(self.size)]
        self._draw_patterns(version)
        self._draw_format()
        self._draw_data(code_words(content, version))

    def lines(self) -> list[str]:
        """Return lines of half blocks for a dark or light terminal, with a margin."""
        margin = 2
        width = self.size + 2 * margin
        rows = [[False] * width for _ in range(margin)]
        for modules in self.modules:
            rows.append([False] * margin + modules + [False] * margin)
        rows += [[False] * width for _ in range(margin + 1)]
        blocks = {
            (False, False): "█",
            (False, True): "▀",
            (True, False): "▄",
            (True, True): " ",
        }
        lines = []
        for row in range(0, len(rows) - 1, 2):
            pairs = zip(rows[row], rows[row + 1], strict=True)
            lines.append("".join(blocks[pair] for pair in pairs))
        return lines

    def _set(self, row: int, column: int, dark: bool) -> None:
        """Draw a square that no data takes."""
        if 0 <= row < self.size and 0 <= column < self.size:
            self.modules[row][column] = dark
            self._fixed[row][column] = True

    def _draw_patterns(self, version: int) -> None:
        """Draw the finder, timing and alignment patterns."""
        for step in range(self.size):
            self._set(6, step, step % 2 == 0)
            self._set(step, 6, step % 2 == 0)
        last = self.size - 4
        for row, column in ((3, 3), (3, last), (last, 3)):
            for down in range(-4, 5):
                for right in range(-4, 5):
                    ring = max(abs(down), abs(right))
                    self._set(row + down, column + right, ring not in (2, 4))
        if version > 1:
            centre = self.size - 7
            for down in range(-2, 3):
                for right in range(-2, 3):
                    ring = max(abs(down), abs(right))
                    self._set(centre + down, centre + right, ring != 1)

    def _draw_format(self) -> None:
        """Draw which level and mask are used, twice."""
        bits = [bool(FORMAT_BITS >> (14 - place) & 1) for place in range(15)]
        end = self.size - 1
        first = [(8, column) for column in (0, 1, 2, 3, 4, 5, 7, 8)]
        first += [(row, 8) for row in (7, 5, 4, 3, 2, 1, 0)]
        second = [(end - step, 8) for step in range(7)]
        second += [(8, self.size - 8 + step) for step in range(8)]
        for places in (first, second):
            for (row, column), dark in zip(places, bits, strict=True):
                self._set(row, column, dark)
        self._set(self.size - 8, 8, True)

    def _draw_data(self, words: list[int]) -> None:
        """Draw the bits in columns of two, up and down from the right, with mask 0."""
        bits = "".join(f"{word:08b}" for word in words)
        place = 0
        upwards = True
        right = self.size - 1
        while right > 0:
            if right == 6:  # the column of the timing pattern
                right -= 1
            rows = range(self.size - 1, -1, -1) if upwards else range(self.size)
            for row in rows:
                for column in (right, right - 1):
                    if self._fixed[row][column]:
                        continue
                    dark = place < len(bits) and bits[place] == "1"
                    place += 1
                    self.modules[row][column] = dark != ((row + column) % 2 == 0)
            upwards = not upwards
            right -= 2
