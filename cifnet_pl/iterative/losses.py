"""Losses and corrections of weights of trained methods, as pure functions of tensors.

n is the number of samples, C the number of classes. Each function agrees with the reference code of
its method to a relative 1e-9 in float64 (``tests/data/iterative_losses.npz``).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

TEMPERATURE = 2.0
"""T of all distillation and transfer."""

CONTRAST_TEMPERATURE = 0.2
"""τ of InfoNCE (TagFex)."""

SEPARATION_TEMPERATURE = 0.1
"""Scale of the dot products in CREATE's separation."""

BASE_TEMPERATURE = 0.07
"""Scale of CREATE's separation itself: it is multiplied by ``SEPARATION_TEMPERATURE`` over this."""

SMALLEST = 1e-10
"""Added to probabilities before their logarithm, as in the reference code of CREATE."""


def distillation(scores: Tensor, teacher: Tensor) -> Tensor:
    """Compute the distillation loss (Hinton et al., 2015).

    ``−mean Σ softmax(t/T) · log softmax(s/T)``

    Args:
        scores: (n, C) scores of the network that learns; those of classes that the teacher does not
            know come last, and are left out.
        teacher: (n, C_old) scores of the network before the task.

    Returns:
        The mean over samples.
    """
    known = scores[:, : teacher.shape[1]] / TEMPERATURE
    target = (teacher / TEMPERATURE).softmax(dim=1)
    return functional.cross_entropy(known, target, reduction="none").mean()


def binary_distillation(scores: Tensor, targets: Tensor) -> Tensor:
    """Compute the binary cross-entropy, summed over classes (iCaRL, algorithm 3).

    Args:
        scores: (n, C) scores.
        targets: (n, C) probabilities: sigmoid outputs of the old network for old classes, one-hot
            for new ones.
    """
    total = functional.binary_cross_entropy_with_logits(
        scores, targets, reduction="sum"
    )
    return total / len(scores)


def align_weights(weight: Tensor, new: int) -> Tensor:
    """Scale the rows of new classes to the mean norm of the old ones (WA, eq. 10).

    ``w_new · (mean ‖w_old‖ / mean ‖w_new‖)``

    Args:
        weight: (C, d) rows of the classifier, new classes last.
        new: number of new classes.

    Returns:
        (C, d) rows, those of old classes unchanged.
    """
    kept, scaled = torch.split(weight, [len(weight) - new, new])
    old_norm = kept.norm(dim=1).mean()
    new_norm = scaled.norm(dim=1).mean()
    gamma = old_norm / new_norm
    return torch.cat([kept, scaled * gamma])


def auxiliary_targets(labels: Tensor, old: int) -> Tensor:
    """Return the labels of DER's auxiliary classifier.

    0 stands for every old class, 1, 2, … for the new ones.

    Args:
        labels: (n,) int64 labels.
        old: number of old classes.
    """
    return (labels - old + 1).clamp_min(0)


# ---------------------------------------------------------------------- PODNet


def pooled_maps_distance(maps: Sequence[Tensor], old: Sequence[Tensor]) -> Tensor:
    """Compute POD-spatial (PODNet, eq. 5).

    Squared maps are summed over each axis, concatenated and normalised.

    Args:
        maps: (n, c, h, w) feature maps of each stage.
        old: the same of the old network.

    Returns:
        Mean over samples of the Euclidean distance, mean over stages.
    """
    distances = []
    for stage, old_stage in zip(maps, old, strict=True):
        difference = _pooled(stage) - _pooled(old_stage)
        distances.append(difference.norm(dim=1).mean())
    return torch.stack(distances).mean()


def _pooled(maps: Tensor) -> Tensor:
    square = maps.square()
    columns = square.sum(3).flatten(1)
    rows = square.sum(2).flatten(1)
    pooled = torch.cat([columns, rows], dim=1)
    return functional.normalize(pooled, dim=1)


def cosine_distance(z: Tensor, old: Tensor) -> Tensor:
    """Compute POD-flat (PODNet, eq. 6): the mean of ``1 − cos(z, old)``, as in the reference code.

    Args:
        z: (n, d) embeddings.
        old: (n, d) embeddings of the old network.
    """
    return functional.cosine_embedding_loss(z, old, z.new_ones(len(z)))


def pod_factor(classes: int, new: int) -> float:
    """Return the weight of distillation in PODNet, ``√(all classes / new classes)``."""
    return math.sqrt(classes / new)


def nca(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute neighbourhood component analysis.

    ``mean max(0, log(1 + Σ_{c≠y} exp s_c) − s_y)``

    The reference code subtracts its margin from all similarities, so that it cancels; the paper
    (eq. 8) subtracts it from the true class alone. The code sets the score of the true class to 0
    in the sum, and its exponential is the 1. As there, scores are shifted by their maximum first,
    so the weight of the 1 depends on it.

    Args:
        scores: (n, C).
        labels: (n,) int64.
    """
    largest = scores.max(dim=1, keepdim=True).values
    scores = scores - largest
    is_label = functional.one_hot(labels, scores.shape[1]).bool()
    of_others = scores.masked_fill(is_label, 0.0)
    differences = of_others.logsumexp(dim=1) - scores[is_label]
    return differences.clamp_min(0).mean()


# ---------------------------------------------------------------------- FOSTER


def effective_weights(counts: Tensor, beta: float) -> Tensor:
    """Compute the class weights of FOSTER (eq. 10; Cui et al., 2019), normalised to sum to C.

    ``(1 − β) / (1 − β^n_c)``

    Args:
        counts: (C,) images of each class that are learned from, at least 1 each.
        beta: β in [0, 1).
    """
    remaining = 1 - beta ** counts.double()
    weights = (1 - beta) / remaining
    return weights / weights.sum() * len(counts)


def boosting(
    scores: Tensor,
    expansion: Tensor,
    teacher: Tensor,
    labels: Tensor,
    class_weights: Tensor,
) -> Tensor:
    """Compute FOSTER's boosting loss.

    ``CE(s/w, y) + CE(s of the new branch, y) + distillation(s of old classes, teacher)``

    Args:
        scores: (n, C) scores from both branches.
        expansion: (n, C) scores from the new branch alone.
        teacher: (n, C_old) scores of the old branch and the old classifier.
        labels: (n,) int64 labels.
        class_weights: (C,).
    """
    rebalanced = functional.cross_entropy(scores / class_weights, labels)
    of_expansion = functional.cross_entropy(expansion, labels)
    return rebalanced + of_expansion + distillation(scores, teacher)


def balanced_distillation(
    scores: Tensor,
    teacher: Tensor,
    class_weights: Tensor,
) -> Tensor:
    """Compute FOSTER's compression loss (eq. 12).

    The teacher's softened outputs are multiplied by class weights and normalised again.

    Args:
        scores: (n, C) scores of the student.
        teacher: (n, C) scores of both branches.
        class_weights: (C,).
    """
    softened = scores / TEMPERATURE
    weighted = (teacher / TEMPERATURE).softmax(dim=1) * class_weights
    target = weighted / weighted.sum(dim=1, keepdim=True)
    return functional.cross_entropy(softened, target, reduction="none").mean()


# ---------------------------------------------------------------------- TagFex


def info_nce(a: Tensor, b: Tensor) -> Tensor:
    """Compute InfoNCE (TagFex, eqs. 4 and 6).

    ``−mean [cos(a_i, b_i')/τ − log Σ_{j≠i} exp(cos(a_i, b_j)/τ)]``, where the positive i' of row i
    is row i + n, modulo 2n.

    Args:
        a: (2n, d) rows, those of the second view after those of the first.
        b: the same as ``a`` for the contrast of two views; predicted or old embeddings to distil
            task-agnostic features.
    """
    a = functional.normalize(a, dim=1)
    b = functional.normalize(b, dim=1)
    contrasts = a @ b.T / CONTRAST_TEMPERATURE
    contrasts.fill_diagonal_(-torch.inf)
    positive = torch.arange(len(a), device=a.device).roll(len(a) // 2)
    return functional.cross_entropy(contrasts, positive)


def transfer(scores: Tensor, merged: Tensor) -> Tensor:
    """Return (n,) ``KL(softmax(merged/T) ‖ softmax(scores/T))`` (TagFex, eq. 9).

    For samples of new classes.

    Args:
        scores: (n, new) scores of the new classes.
        merged: (n, new) scores from the merged features; nothing flows back into them.
    """
    log_probabilities = (scores / TEMPERATURE).log_softmax(dim=1)
    target = (merged.detach() / TEMPERATURE).softmax(dim=1)
    divergence = functional.kl_div(log_probabilities, target, reduction="none")
    return divergence.sum(dim=1)


# ---------------------------------------------------------------------- CREATE


def margin_weights(scores: Tensor, alpha: float) -> Tensor:
    """Return CREATE's weight of each sample, by how confused it is between two classes.

    ``1 + exp(−α (max − second) / (max − min))``, without gradient.

    Args:
        scores: (n, C), the negative reconstruction errors.
        alpha: α.

    Returns:
        (n,) from 1 to 2; 2 for a single class.
    """
    ranked = scores.detach().sort(dim=1, descending=True).values
    best = ranked[:, 0]
    second = ranked[:, :2][:, -1]
    span = best - ranked[:, -1]
    lead = (best - second) / (span + 1e-8)
    return 1 + (-alpha * lead).exp()


def separation(latent: Tensor, labels: Tensor, sample_weights: Tensor) -> Tensor:
    """Compute CREATE's separation, the mean over classes (after Khosla et al., 2020).

    In the latent space of class c the samples of c are pulled together and pushed away from all
    others; samples of other classes are no anchors there.

    Args:
        latent: (n, C, l) latent codes of each sample in each auto-encoder.
        labels: (n,) int64 labels.
        sample_weights: (n,).
    """
    n, classes, _ = latent.shape
    # The code of each anchor in the latent space of its class; zeros in the others. To select the
    # spaces by index would add up their gradients in any order, and no two runs would be the same.
    is_own = functional.one_hot(labels, classes)
    anchors = latent * is_own[:, :, None]
    # (n, n): sample j in the latent space of i's class.
    dots = anchors.flatten(1) @ latent.flatten(1).T / SEPARATION_TEMPERATURE
    largest = dots.max(dim=1, keepdim=True).values.detach()
    dots = (dots - largest).clamp_min(-95.0)
    other = ~torch.eye(n, dtype=torch.bool, device=labels.device)
    exponentials = dots.exp() * other
    normaliser = exponentials.sum(dim=1, keepdim=True)
    log_probability = dots - normaliser.log()
    same_class = labels[:, None] == labels
    positive = same_class & other
    positives = positive.sum(dim=1).clamp_min(1)
    likelihood = (positive * log_probability).sum(dim=1) / positives
    scale = SEPARATION_TEMPERATURE / BASE_TEMPERATURE
    weighted = (likelihood * sample_weights).mean()
    return -scale * weighted / classes
