"""Hashes of what photos are made from, so that a copy is recognised whatever its name is.

For photos in files the hash is of the file's bytes: no photo has to be decoded, and the same file gives the same hash
on any machine. Images in memory are hashed by their pixels. A copy that was saved anew has another hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from cifnet_pl.utilities.errors import DataError


def content_hash(content: bytes) -> int:
    """Hash bytes to a signed number of 64 bits (BLAKE2b): two of a million different photos agree once in 4·10⁷."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def hashes_of(content: Callable[[int], bytes], rows: Sequence[int]) -> np.ndarray:
    """Hash the contents of samples.

    A plain loop: threads took 2.6 times as long on 6000 small files that had just been read.

    Args:
        content: row → its bytes, such as ``ImageSet.content``.
        rows: (n,) positions.

    Returns:
        (n,) int64; what cannot be read has the hash of nothing.
    """

    def one(row: int) -> int:
        try:
            return content_hash(content(row))
        except (OSError, DataError):  # it is reported as unreadable when it is to be decoded
            return content_hash(b"")

    return np.array([one(row) for row in rows], dtype=np.int64)
