"""Pack symmetric matrices so that each number is held once: LAPACK's rectangular full packed format, lower, normal.

A (p, p) matrix becomes (p + 1, p/2) for even p and (p, (p + 1)/2) for odd p (Gustavson, Waśniewski, Dongarra and
Langou, 2010): the lower trapezium of its left half, and in the corner that it leaves free the lower triangle of the
right half, transposed. All of it is a few block copies, on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cifnet_pl.statistics.symmetric import mirror_


def packed_shape(width: int) -> tuple[int, int]:
    """Return the shape of a packed (``width``, ``width``) matrix."""
    return width + 1 - width % 2, (width + 1) // 2


def pack(matrix: Tensor) -> Tensor:
    """Pack symmetric matrices.

    Args:
        matrix: (…, p, p); only the lower triangles are read.

    Returns:
        (…, rows, columns), as :func:`packed_shape` says.

    Example:
        >>> square = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
        >>> pack(square).shape
        torch.Size([3, 1])
        >>> unpack(pack(square), 2).equal(square)
        True
    """
    width = matrix.shape[-1]
    rows, columns = packed_shape(width)
    shift, corner_width = rows - width, width - columns
    packed = matrix.new_empty(*matrix.shape[:-2], rows, columns)
    packed[..., shift:, :] = matrix[..., :columns]
    corner = packed[..., :corner_width, columns - corner_width :]
    upper = torch.ones(corner_width, corner_width, dtype=torch.bool, device=matrix.device).triu()
    corner.copy_(torch.where(upper, matrix[..., columns:, columns:].mT, corner))
    return packed


def unpack(packed: Tensor, width: int) -> Tensor:
    """Return the symmetric matrix (``width``, ``width``) that was packed into (rows, columns)."""
    rows, columns = packed_shape(width)
    shift, corner_width = rows - width, width - columns
    matrix = packed.new_empty(width, width)
    matrix[:, :columns] = packed[shift:]
    matrix[columns:, columns:] = packed[:corner_width, columns - corner_width :].T
    return mirror_(matrix)
