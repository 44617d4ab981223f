"""Check after every task how often sets of answers hold the right class, and how well unknown
images are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from cifnet_pl.data.loading import Batch, name_unreadable
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.task_module import TaskCallback, TaskModule, write_table
from cifnet_pl.model.embedding import embed
from cifnet_pl.model.metrics import percent
from cifnet_pl.model.unknowns import Judge, detection
from cifnet_pl.utilities.errors import DataError, UsageError, prefixed
from cifnet_pl.utilities.files import of_all_processes
from cifnet_pl.utilities.text import number_of, printable

COVERAGE = 0.95
"""Chance that the right class is among the answers."""

UNKNOWN = 0.05
"""Share of images of known classes that may be called unknown."""


class CoverageAndNoveltyMetrics(TaskCallback):
    """Measures sets of answers and unknown images; comes before :class:`TaskMetrics`, which writes
    what it measured.

    Sets of answers are measured where the model is calibrated, the rest where ``--data.unknown``
    gives foreign images. ``answer_sets.csv`` has, for each class after the last task, its test
    images, how many percent of them have it among the answers, and how many answers they have on
    average.

    Attributes:
        measured: after the last task, on the test images of all classes seen, by column of
            ``tasks.csv``: ``set_size``, how many classes are among the answers on average, where
                these are to hold the right one with
            95 %; ``set_coverage``, percent of images whose class is among them; ``called_unknown``,
            percent of images that are called unknown where 5 % was asked for; ``unknown_auroc`` and
            ``unknown_fpr95`` of the foreign images against these images, in percent.
    """

    def __init__(self) -> None:
        self.measured: dict[str, float] = {}
        self._judge: Judge | None = None
        self._foreign: Tensor | None = None
        self._novelty: list[Tensor] = []
        self._called = torch.zeros((), dtype=torch.int64)
        self._sets = torch.zeros(
            0, 3, dtype=torch.int64
        )  # of each class: images, those covered, classes among answers

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find and embed the foreign images before anything is learned.

        Raises:
            UsageError: a method that is not closed-form, or a model of embeddings.
            UnsupportedError: a head that cannot tell unknown things.
            DataError: there are no images, or one cannot be read (``on_corrupt: skip`` leaves it
                out).
        """
        folder = cast(TaskModule, pl_module).data.unknown
        if folder is None:
            return
        if not isinstance(pl_module, CIFNetModule):
            raise UsageError(
                "--data.unknown needs a closed-form head: trained methods cannot tell unknown"
                " things"
            )
        pl_module.head.require("tells_novelty")
        if not pl_module.backbone.takes_images:
            raise UsageError(
                "--data.unknown takes images, but this run learns embeddings: leave it out"
            )
        self._foreign = self._embedded(pl_module, folder)

    def _embedded(self, module: CIFNetModule, folder: str) -> Tensor:
        data = module.data
        with prefixed("--data.unknown"):
            z, _, unreadable = embed(
                folder, module.backbone, image_size=data.image_size, device=str(module.device)
            )
            if unreadable and data.on_corrupt == "error":
                raise DataError(
                    name_unreadable(
                        [f"{image}: {reason}" for image, reason in unreadable.items()], ()
                    )
                )
            if not len(z):
                raise DataError(f"none of the images of {printable(folder)} can be read")
        return z

    def sentences(self) -> list[str]:
        """Return what the screen says at the end about the foreign images; nothing where there are
        none.
        """
        found = self.measured
        if self._foreign is None or "unknown_auroc" not in found:
            return []
        if "called_unknown" in found:
            called = (
                f"; where 5 % were to be called unknown, {found['called_unknown']:.1f} % of the"
                " test images are"
            )
        else:
            called = ""
        return [
            f"Unknown things, {number_of(len(self._foreign), 'image')}: told from the known ones"
            f" with an AUROC of {found['unknown_auroc']:.1f} % (100 is perfect, 50 is chance);"
            f" {found['unknown_fpr95']:.1f} % of them pass for known where 95 % of the known ones"
            f" do (FPR95){called}."
        ]

    def begin_evaluation(self, trainer: Trainer, module: TaskModule) -> None:
        """Choose the thresholds that are to be measured."""
        self._judge = None
        self._novelty = []
        self._called = torch.zeros_like(self._called)
        self._sets = torch.zeros(len(module.class_names), 3, dtype=torch.int64)
        if isinstance(module, CIFNetModule):
            unknown, coverage = module.model.available_shares(UNKNOWN, COVERAGE)
            asked = (
                unknown if self._foreign is not None else None,
                coverage if module.model.calibrated else None,
            )
            if asked != (None, None):
                self._judge = module.model.judge(*asked)

    def see_answers(self, module: TaskModule, probabilities: Tensor, batch: Batch) -> None:
        """Count a batch of test images."""
        if not isinstance(module, CIFNetModule):
            return
        judge = self._judge
        found = torch.tensor([[1, 0, 0]]).repeat(len(batch.label), 1)
        if judge is not None and judge.sets is not None:
            members = judge.sets.of_probabilities(probabilities)
            found[:, 1] = members.gather(1, batch.label[:, None])[:, 0].cpu()
            found[:, 2] = members.sum(dim=1).cpu()
        self._sets.index_add_(0, batch.label.cpu(), found)
        if self._foreign is not None:
            novelty = module.head.novelty(module.evaluated)
            self._novelty.append(novelty.cpu())
            if judge is not None and judge.reference is not None:
                self._called += (judge.reference.p_values(novelty) <= UNKNOWN).sum().cpu()

    def end_task(self, trainer: Trainer, module: TaskModule) -> None:
        """Sum the counts of all processes, and write the table of sets."""
        self.measured = {}
        judge = self._judge
        if not isinstance(module, CIFNetModule) or (judge is None and self._foreign is None):
            return
        by_class = torch.stack(of_all_processes(self._sets)).sum(dim=0)
        known = torch.cat(of_all_processes(torch.cat([torch.zeros(0), *self._novelty])))
        called = sum(of_all_processes(int(self._called)))
        images, covered, answers = by_class.sum(dim=0).tolist()
        if not images:
            return
        if judge is not None and judge.sets is not None:
            self.measured |= {"set_size": answers / images, "set_coverage": 100 * covered / images}
            rows = sets_table(module.class_names, by_class)
            write_table(
                trainer, "answer_sets.csv", ["class", "test_images", "covered", "answers"], rows
            )
        if judge is not None and judge.reference is not None:
            self.measured["called_unknown"] = 100 * called / images
        if self._foreign is not None:
            foreign = module.head.novelty(self._foreign.to(module.head.labels.device)).cpu()
            self.measured["unknown_auroc"], self.measured["unknown_fpr95"] = detection(
                known, foreign
            )


def sets_table(names: Sequence[str], counts: Tensor) -> list[list[Any]]:
    """Return the rows of ``answer_sets.csv``: class, test images, percent of them covered, and
    answers on average.

    Args:
        names: of the classes.
        counts: (C, 3) int64 test images of each, those whose answers hold it, and answers of all
            its images.

    Example:
        >>> sets_table(["ant", "bee"], torch.tensor([[4, 3, 10], [0, 0, 0]]))
        [['ant', 4, 75.0, 2.5], ['bee', 0, None, None]]
    """
    return [
        [name, images, percent(covered, images), answers / images if images else None]
        for name, (images, covered, answers) in zip(names, counts.tolist(), strict=True)
    ]
