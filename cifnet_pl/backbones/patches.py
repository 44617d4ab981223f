"""A network without gradients: a dictionary of image patches, learned by k-means without labels.

Coates, Lee and Ng (2011), "An Analysis of Single-Layer Networks in Unsupervised Feature Learning",
with the encoding of Coates and Ng (2011), "The Importance of Encoding Versus Training with Sparse
Coding and Vector Quantization".
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.utilities.errors import CifnetError

PATCH_SIDE = 6
"""Side of a patch in pixels."""

CONTRAST_REGULARISATION = 10.0
"""Added to a patch's variance in 0–255, so that the noise of flat patches is not made large."""

WHITENING_REGULARISATION = 0.1
"""Added to the eigenvalues of the covariance of patches before whitening."""

THRESHOLD = 0.25
"""Responses to a centre that are smaller than this count as none."""

DRAWN_PATCHES = 100_000
"""Patches from which the dictionary is learned."""

ITERATIONS = 10
"""Passes over the patches to find the centres."""

COMPARED_ROWS = 10_000
"""Patches that are compared with the centres at once."""

STANDARDISED_BY = 1000
"""Images by which the features are standardised."""


class Patches(nn.Module):
    """Patch responses to a dictionary, averaged over the cells of a grid.

    Every 6×6 patch is normalised to mean 0 and contrast 1, whitened, and compared with all centres.
    The excess of a response a over the threshold θ, ``max(a − θ, 0)`` and ``max(−a − θ, 0)``, is
    averaged over each cell of the grid. The square roots are standardised. As both signs are kept,
    d = 2 · centres · cells².

    Args:
        centres: number of centres.
        cells: number of cells on a side of the grid.

    Attributes:
        filters: (108, centres) whitening and centres in one matrix; all 0 before they are learned.
        offset: (centres,) response of the mean patch.
        mean: (d,) of the square roots.
        deviation: (d,) of the square roots.
        cpu_batch: images that it embeds at once on a CPU.
    """

    cpu_batch = 4

    def __init__(self, centres: int, cells: int = 2):
        super().__init__()
        self.cells = cells
        self.features = 2 * centres * cells**2
        self.filters: Tensor = nn.Buffer(torch.zeros(3 * PATCH_SIDE**2, centres))
        self.offset: Tensor = nn.Buffer(torch.zeros(centres))
        self.mean: Tensor = nn.Buffer(torch.zeros(self.features))
        self.deviation: Tensor = nn.Buffer(torch.ones(self.features))

    @property
    def is_learned(self) -> bool:
        """Whether there is a dictionary."""
        return bool(self.filters.any())

    def forward(self, x: Tensor) -> Tensor:
        """Return standardised features (n, d) of images (n, 3, h, w) in 0–255."""
        roots = self._square_roots(x)
        return (roots - self.mean) / self.deviation

    def _square_roots(self, x: Tensor) -> Tensor:
        """Return (n, d) square roots of the averaged responses."""
        height = x.shape[2] - PATCH_SIDE + 1
        width = x.shape[3] - PATCH_SIDE + 1
        row_shares = _cell_shares(height, self.cells)
        column_shares = _cell_shares(width, self.cells)
        # Kronecker: a row for each cell, with the share of each position.
        pooling = torch.kron(row_shares, column_shares).to(x)
        unfolded = functional.unfold(x, PATCH_SIDE)
        patches = normalised(unfolded.mT)
        threshold = self.offset + THRESHOLD
        above = patches @ self.filters - threshold
        negative = -2 * THRESHOLD - above
        below = negative.relu()
        above = above.relu_()
        pooled_above = pooling @ above
        pooled_below = pooling @ below
        pooled = torch.cat([pooled_above, pooled_below], dim=1)
        return pooled.flatten(1).sqrt()

    @torch.inference_mode()
    def learn_from(self, images: Tensor, seed: int) -> None:
        """Learn the dictionary, and the scale of the features, from images without labels.

        Args:
            images: (n, 3, h, w) uint8; h and w at least 5 pixels more than the number of cells.
            seed: of the draw of patches and of the first centres.

        Raises:
            CifnetError: there are no images, or they are smaller.
        """
        smallest = PATCH_SIDE + self.cells - 1
        smallest_side = min(images.shape[2:])
        if not len(images) or smallest_side < smallest:
            raise CifnetError(
                f"patches are learned from images of {smallest} pixels or more, got"
                f" {tuple(images.shape)}"
            )
        generator = torch.Generator().manual_seed(seed)
        drawn = _drawn_patches(images, generator)
        patches = normalised(drawn)
        mean = patches.mean(dim=0)
        centred = patches - mean
        values, vectors = torch.linalg.eigh(torch.cov(centred.T))
        deviations = (values + WHITENING_REGULARISATION).sqrt()
        scaled = vectors / deviations
        whitening = scaled @ vectors.T
        whitened = centred @ whitening
        count = self.offset.numel()
        centres = spherical_k_means(whitened, count, generator)
        self.filters.copy_(whitening @ centres.T)
        white_mean = mean @ whitening
        self.offset.copy_(white_mean @ centres.T)
        order = torch.randperm(len(images), generator=generator)
        self._standardise(images[order[:STANDARDISED_BY]])

    def _standardise(self, images: Tensor) -> None:
        """Measure the mean and deviation of the features on images."""
        drawn = images.to(self.filters.device)
        parts = torch.split(drawn, self.cpu_batch)
        roots = torch.cat([self._square_roots(part.float()) for part in parts])
        deviation, mean = torch.std_mean(roots, dim=0, correction=0)
        self.mean.copy_(mean)
        self.deviation.copy_(torch.where(deviation > 0, deviation, 1))


def _drawn_patches(images: Tensor, generator: torch.Generator) -> Tensor:
    """Draw patches (``DRAWN_PATCHES``, 108) float32 from images (n, 3, h, w)."""
    rows_of_windows = images.cpu().unfold(2, PATCH_SIDE, 1)
    windows = rows_of_windows.unfold(3, PATCH_SIDE, 1)  # a view
    count, _, rows, columns = windows.shape[:4]
    image = torch.randint(count, (DRAWN_PATCHES,), generator=generator)
    row = torch.randint(rows, (DRAWN_PATCHES,), generator=generator)
    column = torch.randint(columns, (DRAWN_PATCHES,), generator=generator)
    patches = windows[image, :, row, column]
    return patches.float().flatten(1)


def normalised(patches: Tensor) -> Tensor:
    """Return patches (…, 108) in 0–255 with mean 0 and contrast 1."""
    mean = patches.mean(dim=-1, keepdim=True)
    centred = patches - mean
    squares = centred.square()
    variance = squares.mean(dim=-1, keepdim=True)
    regularised = variance + CONTRAST_REGULARISATION
    return centred / regularised.sqrt()


def spherical_k_means(x: Tensor, centres: int, generator: torch.Generator) -> Tensor:
    """Cluster rows by direction; a row and its negative count as the same direction.

    Args:
        x: (n, p) rows.
        centres: number of centres.
        generator: draws the first ones.

    Returns:
        (centres, p) of length 1.
    """
    order = torch.randperm(len(x), generator=generator)
    first = order[:centres]
    width = x.shape[1]
    noise = torch.randn(centres, width, generator=generator)
    start = x[first] + 1e-3 * noise
    found = functional.normalize(start)
    for _ in range(ITERATIONS):
        total = torch.zeros_like(found)
        for part in torch.split(x, COMPARED_ROWS):
            response = part @ found.T
            nearest = response.abs().argmax(dim=1)
            column = nearest[:, None]
            signed = response.gather(1, column)
            total.index_add_(0, nearest, part * signed)
        # A centre that no row is near to stays where it is.
        moved = total.any(dim=1, keepdim=True)
        centres_or_totals = torch.where(moved, total, found)
        found = functional.normalize(centres_or_totals)
    return found


def _cell_shares(positions: int, cells: int) -> Tensor:
    """Return (cells, positions) shares by which positions on a side are averaged in a cell."""
    scaled = torch.arange(positions) * cells
    cell_of_position = scaled // positions
    cell = torch.arange(cells)[:, None]
    inside = (cell_of_position == cell).float()
    return inside / inside.sum(dim=1, keepdim=True)
