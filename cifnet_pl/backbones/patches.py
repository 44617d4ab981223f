"""A network without gradients: a dictionary of image patches, learned by k-means from images
without labels.

Coates, Lee and Ng (2011), "An Analysis of Single-Layer Networks in Unsupervised Feature Learning",
with the encoding of Coates and Ng (2011), "The Importance of Encoding Versus Training with Sparse
Coding and Vector Quantization".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.utilities.errors import CifnetError

SIDE = 6
"""Side of a patch in pixels."""

CONTRAST = 10.0
"""Added to a patch's variance, on the scale of 0 to 255, so that flat patches are not noise made
large.
"""

WHITENING = 0.1
"""Added to the eigenvalues of the covariance of patches before whitening."""

THRESHOLD = 0.25
"""Responses to a centre that are smaller than this count as none."""

DRAWN = 100_000
ITERATIONS = 10
"""Patches that the dictionary is learned from, and passes of k-means over them."""

MEASURED = 1000
"""Images by which the features are standardised."""


class Patches(nn.Module):
    """Patch responses to a dictionary, averaged over the cells of a grid: images (n, 3, h, w) in
    0–255 → (n, d).

    Every 6×6 patch is normalised to mean 0 and contrast 1, whitened, and compared with all centres.
    What a response a exceeds the threshold θ by, ``max(a − θ, 0)`` and ``max(−a − θ, 0)``, is
    averaged over each cell of the grid; the square roots are standardised. Two-sided, d = 2 ·
    centres · cells².

    Args:
        centres: number of centres.
        cells: of the grid on a side.

    Attributes:
        filters: (108, centres) whitening and centres in one matrix; all 0 before they are learned.
        offset: (centres,) what they give for the mean patch.
        mean, deviation: (d,) of the square roots.
        at_once: images that it embeds at once on a CPU.
    """

    at_once = 4

    def __init__(self, centres: int, cells: int):
        super().__init__()
        self.cells = cells
        self.features = 2 * centres * cells**2
        self.filters: Tensor = nn.Buffer(torch.zeros(3 * SIDE**2, centres))
        self.offset: Tensor = nn.Buffer(torch.zeros(centres))
        self.mean: Tensor = nn.Buffer(torch.zeros(self.features))
        self.deviation: Tensor = nn.Buffer(torch.ones(self.features))

    @property
    def learned(self) -> bool:
        """Whether there is a dictionary."""
        return bool(self.filters.any())

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, d) standardised features."""
        return (self._roots(x) - self.mean) / self.deviation

    def _roots(self, x: Tensor) -> Tensor:
        """Return (n, d) square roots of the averaged responses."""
        height, width = (side - SIDE + 1 for side in x.shape[2:])
        share = (
            _cells(height, self.cells)[:, None, :, None]
            * _cells(width, self.cells)[None, :, None, :]
        )
        pool = share.reshape(self.cells**2, height * width).to(x)
        over = normalised(functional.unfold(x, SIDE).mT) @ self.filters - (self.offset + THRESHOLD)
        under = (-2 * THRESHOLD - over).relu()
        sides = [pool @ over.relu_(), pool @ under]
        return torch.cat(sides, dim=1).flatten(1).sqrt()

    @torch.inference_mode()
    def learn_from(self, images: Tensor, seed: int) -> None:
        """Learn the dictionary, and the scale of the features, from images without labels.

        Args:
            images: (n, 3, h, w) uint8, a side at least 6 and the number of cells more.
            seed: of the draw of patches and of the first centres.

        Raises:
            CifnetError: no images, smaller ones, or all patches alike.
        """
        if not len(images) or min(images.shape[2:]) < SIDE + self.cells - 1:
            raise CifnetError(
                f"patches are learned from images of {SIDE + self.cells - 1} pixels or more, got"
                f" {tuple(images.shape)}"
            )
        generator = torch.Generator().manual_seed(seed)
        windows = (
            images.cpu().unfold(2, SIDE, 1).unfold(3, SIDE, 1)
        )  # (n, 3, rows, columns, 6, 6), a view
        places = [
            torch.randint(windows.shape[axis], (DRAWN,), generator=generator) for axis in (0, 2, 3)
        ]
        patches = normalised(windows[places[0], :, places[1], places[2]].float().flatten(1))
        mean = patches.mean(dim=0)
        values, vectors = torch.linalg.eigh(torch.cov((patches - mean).T))
        if values[-1] <= 0:
            raise CifnetError(
                "the images are flat: backbone patches finds no patches with contrast in them"
            )
        whitening = vectors / (values + WHITENING).sqrt() @ vectors.T
        centres = spherical_k_means((patches - mean) @ whitening, self.offset.numel(), generator)
        self.filters.copy_(whitening @ centres.T)
        self.offset.copy_(mean @ whitening @ centres.T)
        drawn = images[torch.randperm(len(images), generator=generator)[:MEASURED]].to(
            self.filters.device
        )
        roots = torch.cat([self._roots(part.float()) for part in torch.split(drawn, self.at_once)])
        deviation, self.mean[:] = torch.std_mean(roots, dim=0, correction=0)
        self.deviation.copy_(torch.where(deviation > 0, deviation, 1))


def normalised(patches: Tensor) -> Tensor:
    """Return patches (…, 108) in 0–255 with mean 0 and contrast 1."""
    centred = patches - patches.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + CONTRAST).sqrt()


def spherical_k_means(x: Tensor, centres: int, generator: torch.Generator) -> Tensor:
    """Cluster rows by direction, a row and its negative alike.

    Args:
        x: (n, p) rows.
        centres: number of centres.
        generator: draws the first ones.

    Returns:
        (centres, p) of length 1.
    """
    first = torch.randperm(len(x), generator=generator)[:centres]
    found = functional.normalize(
        x[first] + 1e-3 * torch.randn(centres, x.shape[1], generator=generator)
    )
    for _ in range(ITERATIONS):
        total = torch.zeros_like(found)
        for part in torch.split(x, 10_000):
            response = part @ found.T
            nearest = response.abs().argmax(dim=1)
            total.index_add_(0, nearest, part * response.gather(1, nearest[:, None]))
        # A centre that no row is near to stays where it is.
        found = functional.normalize(torch.where(total.any(dim=1, keepdim=True), total, found))
    return found


def _cells(positions: int, cells: int) -> Tensor:
    """Return (cells, positions) shares by which positions along one side are averaged within each
    cell.
    """
    inside = (torch.arange(positions) * cells // positions == torch.arange(cells)[:, None]).float()
    return inside / inside.sum(dim=1, keepdim=True)
