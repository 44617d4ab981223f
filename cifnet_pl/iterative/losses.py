"""Losses and weight corrections that several trained methods share, as pure functions of tensors.

n is the number of samples, C the number of classes. Each function agrees with the reference code of
its method to a relative 1e-9 in float64 (``tests/data/iterative_losses.npz``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

SMALLEST = 1e-10
"""Added to probabilities before their logarithm, as in the reference code of CREATE."""


def distillation(
    scores: Tensor, teacher: Tensor, temperature: float = 2.0, scale: bool = False
) -> Tensor:
    """Compute cross-entropy between softened outputs: ``−mean Σ softmax(t/T) · log softmax(s/T)``
    (Hinton et al. 2015).

    Args:
        scores: (n, C) scores of the network that learns, for the teacher's classes.
        teacher: (n, C) scores of the network before the task.
        temperature: T.
        scale: whether to multiply by T²; CREATE does, WA, iCaRL and FOSTER do not.

    Returns:
        The mean over samples.
    """
    soft = (teacher / temperature).softmax(dim=1)
    loss = -(soft * (scores / temperature).log_softmax(dim=1)).sum(dim=1).mean()
    if scale:
        return loss * temperature**2
    return loss


def binary_distillation(scores: Tensor, targets: Tensor) -> Tensor:
    """Compute the binary cross-entropy summed over classes and averaged over samples (iCaRL's
    paper, algorithm 3).

    Args:
        scores: (n, C) scores.
        targets: (n, C) probabilities: sigmoid outputs of the old network for old classes, one-hot
            for new ones.
    """
    return functional.binary_cross_entropy_with_logits(
        scores, targets, reduction="sum"
    ) / len(scores)


def align_weights(weight: Tensor, new: int, value: float = 1.0) -> Tensor:
    """Scale the rows of new classes to the mean norm of the old ones (WA, eq. 10).

    ``w_new · (mean ‖w_old‖ / mean ‖w_new‖) · value^(old/new)``; the power is FOSTER's.

    Args:
        weight: (C, d) rows of the classifier, new classes last.
        new: number of new classes.
        value: base of the extra factor.

    Returns:
        (C, d) rows, those of old classes unchanged.
    """
    old = len(weight) - new
    gamma = (
        weight[:old].norm(dim=1).mean()
        / weight[old:].norm(dim=1).mean()
        * value ** (old / new)
    )
    return torch.cat([weight[:old], weight[old:] * gamma])


def auxiliary_targets(labels: Tensor, old: int) -> Tensor:
    """Return the labels of DER's auxiliary classifier: 0 for every old class, 1, 2, … for the new
    ones.

    Args:
        labels: (n,) int64 labels.
        old: number of old classes.
    """
    return (labels - old + 1).clamp_min(0)


# ---------------------------------------------------------------------- PODNet


def pooled_maps_distance(maps: Sequence[Tensor], old: Sequence[Tensor]) -> Tensor:
    """Compute POD-spatial (PODNet, eq. 5): squared maps summed over each axis, joined, normalised;
    mean distance.

    Args:
        maps: (n, c, h, w) feature maps of each stage.
        old: the same of the old network.

    Returns:
        Mean over samples of the Euclidean distance, mean over stages.
    """

    def pooled(stage: Tensor) -> Tensor:
        square = stage.square()
        return functional.normalize(
            torch.cat([square.sum(3).flatten(1), square.sum(2).flatten(1)], dim=1),
            dim=1,
        )

    distances = [
        (pooled(a) - pooled(b)).norm(dim=1).mean()
        for a, b in zip(maps, old, strict=True)
    ]
    return torch.stack(distances).mean()


def cosine_distance(z: Tensor, old: Tensor) -> Tensor:
    """Compute POD-flat (PODNet, eq. 6) as in the reference code: mean of ``1 − cos(z, old)``, of
    embeddings (n, d).
    """
    return functional.cosine_embedding_loss(z, old, z.new_ones(len(z)))


def pod_factor(classes: int, new: int) -> float:
    """Return ``√(all classes / new classes)``: how much distillation weighs when few classes are
    new.
    """
    return math.sqrt(classes / new)


def proxy_scores(z: Tensor, proxies: Tensor, count: int, sigma: Tensor) -> Tensor:
    """Return the cosines to several proxies for each class, weighted by their own softmax (PODNet,
    eq. 7).

    Args:
        z: (n, d) embeddings.
        proxies: (C·count, d), those of one class next to each other.
        count: proxies of each class.
        sigma: learned scale.

    Returns:
        (n, C) scores.
    """
    cosines = functional.linear(
        functional.normalize(z, dim=1), functional.normalize(proxies, dim=1)
    )
    cosines = cosines.view(len(z), -1, count)
    return sigma * (cosines.softmax(dim=2) * cosines).sum(dim=2)


def nca(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute neighbourhood component analysis: the mean of ``max(0, log(1 + Σ_{c≠y} exp s_c) −
    s_y)``.

    The reference code subtracts its margin from all similarities, so that it cancels; the paper
    (eq. 8) subtracts it from the right class alone. The code sets the score of the right class to 0
    in the sum, and its exponential is the 1.
    As there, scores are shifted by their maximum first, so the weight of the 1 depends on it.

    Args:
        scores: (n, C).
        labels: (n,) int64.
    """
    scores = scores - scores.max(dim=1, keepdim=True).values
    is_label = functional.one_hot(labels, scores.shape[1]).bool()
    others = scores.masked_fill(is_label, 0.0).exp().sum(dim=1)
    return (others.log() - scores[is_label]).clamp_min(0).mean()


# ---------------------------------------------------------------------- FOSTER


def effective_weights(counts: Tensor, beta: float) -> Tensor:
    """Compute the class weights ``(1 − β)/(1 − β^n_c)`` (Cui et al. 2019), normalised to sum to C
    (FOSTER, eq. 10).

    Args:
        counts: (C,) images of each class that are learned from.
        beta: β in [0, 1).
    """
    weights = (1 - beta) / (1 - beta ** counts.double())
    return weights / weights.sum() * len(counts)


def boosting(
    scores: Tensor, expansion: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor
) -> Tensor:
    """Compute FOSTER's boosting loss: ``CE(s/w, y) + CE(s_new branch, y) + distillation(s_old
    classes, teacher)``.

    Args:
        scores: (n, C) scores from both branches.
        expansion: (n, C) scores from the new branch alone.
        teacher: (n, C_old) scores of the old branch and the old classifier.
        labels: (n,) int64 labels.
        weights: (C,) weights of classes.
    """
    rebalanced = functional.cross_entropy(scores / weights, labels)
    expansion_loss = functional.cross_entropy(expansion, labels)
    return (
        rebalanced
        + expansion_loss
        + distillation(scores[:, : teacher.shape[1]], teacher)
    )


def balanced_distillation(
    scores: Tensor, teacher: Tensor, weights: Tensor, temperature: float = 2.0
) -> Tensor:
    """Compute FOSTER's compression loss: the teacher's softened outputs times class weights,
    normalised again (eq. 12).

    Args:
        scores: (n, C) scores of the student.
        teacher: (n, C) scores of both branches.
        weights: (C,) weights of classes.
        temperature: T.
    """
    soft = (teacher / temperature).softmax(dim=1) * weights
    soft = soft / soft.sum(dim=1, keepdim=True)
    return -(soft * (scores / temperature).log_softmax(dim=1)).sum(dim=1).mean()


# ---------------------------------------------------------------------- TagFex


def info_nce(a: Tensor, b: Tensor, temperature: float = 0.2) -> Tensor:
    """Compute InfoNCE: ``−mean [cos(a_i, b_i')/τ − log Σ_{j≠i} exp(cos(a_i, b_j)/τ)]``.

    The positive i' of row i is row i + n, modulo 2n (TagFex, eqs. 4 and 6).

    Args:
        a: (2n, d) rows, those of the second view after those of the first.
        b: the same as ``a`` for the contrast of two views; predicted or old embeddings to distil
            task-agnostic features.
        temperature: τ.
    """
    cosines = (
        functional.normalize(a, dim=1) @ functional.normalize(b, dim=1).T / temperature
    )
    diagonal = torch.eye(len(a), dtype=torch.bool, device=a.device)
    positive = torch.arange(len(a), device=a.device).roll(-(len(a) // 2))
    return functional.cross_entropy(cosines.masked_fill(diagonal, -torch.inf), positive)


def transfer(scores: Tensor, merged: Tensor, temperature: float = 2.0) -> Tensor:
    """Return (n,) ``KL(softmax(merged/T) ‖ softmax(scores/T))``, for samples of new classes
    (TagFex, eq. 9).

    Args:
        scores: (n, new) scores of the new classes.
        merged: (n, new) scores from the merged features; nothing flows back into them.
        temperature: T.
    """
    soft = (merged.detach() / temperature).softmax(dim=1)
    return functional.kl_div(
        (scores / temperature).log_softmax(dim=1), soft, reduction="none"
    ).sum(dim=1)


# ---------------------------------------------------------------------- CREATE


def confusion(errors: Tensor) -> Tensor:
    """Return how far the best class is ahead of the second: ``(max − second)/(max − min)``, without
    gradient.

    Args:
        errors: (n, C) scores of at least two classes.

    Returns:
        (n,).
    """
    best = errors.detach().sort(dim=1, descending=True).values
    return (best[:, 1] - best[:, 0]).abs() / ((best[:, 0] - best[:, -1]).abs() + 1e-8)


def confusion_weights(errors: Tensor, alpha: float = 4.0) -> Tensor:
    """Return CREATE's weight of each sample: ``1 + exp(−α s)`` with s of :func:`confusion`.

    Args:
        errors: (n, C) scores of at least two classes.
        alpha: α.
    """
    return 1 + (-alpha * confusion(errors)).exp()


def separation(
    latent: Tensor,
    labels: Tensor,
    weights: Tensor,
    temperature: float = 0.1,
    base_temperature: float = 0.07,
) -> Tensor:
    """Compute the contrastive separation within each class's auto-encoder, the mean over classes.

    It is CREATE's, after Khosla et al. (2020). In the latent space of class c the samples of c are
    pulled together and pushed away from all others; samples of other classes are no anchors there.

    Args:
        latent: (n, C, l) latent codes of each sample in each auto-encoder.
        labels: (n,) int64 labels.
        weights: (n,) weights of samples.
        temperature, base_temperature: scale of the dot products, and of the loss.
    """
    n, classes, _ = latent.shape
    codes = latent[
        torch.arange(n, device=labels.device), labels
    ]  # (n, l): each anchor in the space of its class
    dots = (
        torch.einsum("il,jil->ij", codes, latent[:, labels]) / temperature
    )  # (n, n): j in the space of i's class
    dots = (dots - dots.max(dim=1, keepdim=True).values.detach()).clamp_min(-95.0)
    other = ~torch.eye(n, dtype=torch.bool, device=labels.device)
    log_probability = dots - (dots.exp() * other).sum(dim=1, keepdim=True).log()
    positive = (labels[:, None] == labels[None, :]) & other
    mean = (positive * log_probability).sum(dim=1) / positive.sum(dim=1).clamp_min(1)
    return -(temperature / base_temperature) * (mean * weights).mean() / classes
