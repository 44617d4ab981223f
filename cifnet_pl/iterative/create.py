"""CREATE: an auto-encoder for each class classifies by reconstruction (Chen et al. 2025)."""

from typing import Any

import torch
from torch import Tensor, nn

from cifnet_pl.iterative.descent import StepBatch, check_tuning
from cifnet_pl.iterative.losses import (
    SMALLEST,
    TEMPERATURE,
    distillation,
    margin_weights,
    separation,
)
from cifnet_pl.iterative.replay import DistillationModule
from cifnet_pl.utilities.errors import check_count

GAMMA = 0.1
"""Scale γ of the L1 distance between an embedding and its reconstruction."""


class AutoEncoders(nn.Module):
    """One small auto-encoder for each class, ``tanh(D tanh(E z))``.

    The score of a class is how well its auto-encoder reconstructs z.

    Args:
        inputs: width of the embeddings.
        latent: width of the codes.
    """

    def __init__(self, inputs: int, latent: int):
        super().__init__()
        self.encode = nn.Parameter(torch.empty(0, latent, inputs))
        self.decode = nn.Parameter(torch.empty(0, inputs, latent))

    def grow(self, classes: int) -> None:
        """Add auto-encoders of new classes, drawn as torch draws a convolution."""
        for name, old in list(self.named_parameters()):
            bound = old.shape[2] ** -0.5
            new = torch.empty(classes, *old.shape[1:]).uniform_(-bound, bound)
            joined = torch.cat([old.detach(), new.to(old)])
            setattr(self, name, nn.Parameter(joined))

    def forward(self, z: Tensor) -> Tensor:
        """Return (n, C) scores of embeddings (n, d)."""
        scores, _ = self.reconstruct(z)
        return scores

    def reconstruct(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Reconstruct embeddings.

        Args:
            z: (n, d) embeddings.

        Returns:
            (n, C) scores ``−γ ‖reconstruction − z‖₁``, and (n, C, latent) codes.
        """
        codes = torch.einsum("nd,cld->ncl", z, self.encode).tanh()
        rebuilt = torch.einsum("ncl,cdl->ncd", codes, self.decode).tanh()
        errors = rebuilt - z[:, None]
        distance = errors.abs().sum(dim=2)
        logits = -GAMMA * distance
        return logits.clamp(-500, 500), codes


class CREATEModule(DistillationModule):
    """CREATE: reducing class confusion with class-specific auto-encoders.

    * Classifier: an auto-encoder of the embedding for each class c,
      ``s_c = −γ ‖D_c(E_c(z)) − z‖₁``, γ = 0.1; probabilities are the softmax of s.
    * Loss: ``−log p_y + T² distillation(s of old classes) + separation``, T = 2. Separation pulls
      samples of one class together in the codes of its auto-encoder, and weights each by how
      confused it is: ``1 + exp(−α (max − second)/(max − min))`` of s.
    * After each task but the first the auto-encoders are tuned on balanced classes, for ``tuning``
      of the epochs, with the same loss. The network's weights do not change, but its batch
      statistics, if they are learned, do: as in the reference code.

    Args:
        latent: width of the codes.
        alpha: α.
        tuning: share of the epochs that balanced fine-tuning takes, or 0.
        tuning_rate: its learning rate.
        options: of :class:`~cifnet_pl.iterative.trainer.IterativeModule`.
    """

    compares_processes = True

    def __init__(
        self,
        latent: int = 32,
        alpha: float = 4.0,
        tuning: float = 20 / 120,
        tuning_rate: float = 0.005,
        **options: Any,
    ):
        super().__init__(**options)
        check_count("latent", latent)
        check_tuning(tuning, tuning_rate)
        self.options |= {
            "latent": latent,
            "alpha": alpha,
            "tuning": tuning,
            "tuning_rate": tuning_rate,
        }
        self.encoders = AutoEncoders(self.width, latent)

    def expand(self, classes: int) -> None:
        """Add auto-encoders of new classes."""
        self.encoders.grow(classes)

    @property
    def output_layer(self) -> nn.Module:
        """Auto-encoders of all classes."""
        return self.encoders

    def loss(self, batch: StepBatch) -> Tensor:
        """Compute classification, separation and, from the second task on, distillation."""
        x = batch.inputs()
        scores, codes = self.encoders.reconstruct(self.features(x).float())
        scores = scores.float()
        probabilities = scores.softmax(dim=1) + SMALLEST
        own = probabilities.gather(1, batch.labels[:, None])
        separated = self._separation(scores, codes.float(), batch.labels)
        loss = -own.log().mean() + separated
        if self.is_first_task:
            return loss
        # Multiplied by T², which WA, iCaRL and FOSTER do not.
        return loss + TEMPERATURE**2 * distillation(scores, self.old_scores(x))

    def _separation(self, scores: Tensor, codes: Tensor, labels: Tensor) -> Tensor:
        """Compute the separation over the batch of all processes."""
        sample_weights = margin_weights(scores, self.options["alpha"])
        codes = self.processes.gather(codes)
        labels = self.processes.gather(labels)
        sample_weights = self.processes.gather(sample_weights)
        if len(codes) == 1:
            # A single image is separated from nothing.
            return codes.new_zeros(())
        with torch.autocast(codes.device.type, enabled=False):
            return separation(codes, labels, sample_weights) / self.processes.share

    def after_exemplar_selection(self) -> None:
        """Fine-tune the auto-encoders on balanced classes."""
        self.network.requires_grad_(False)
        self.tune(self.options["tuning"], self.options["tuning_rate"])
        self.network.requires_grad_(True)
