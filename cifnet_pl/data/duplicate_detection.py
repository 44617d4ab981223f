"""Find copies among the samples of a data module, by their contents."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.cache import EmbeddingStores
from cifnet_pl.data.content_hashes import ContentHashes
from cifnet_pl.data.copies import NONE, Copies, Duplicates, find_copies
from cifnet_pl.data.embeddings import EmbeddingSet
from cifnet_pl.data.image_sets import ImageSet, SampleSet
from cifnet_pl.data.task_data import TaskData


class DuplicateDetection(TaskData):
    """A data module that can find copies among its samples.

    Attributes:
        duplicates: what becomes of copies; None where samples are not compared.
    """

    duplicates: Duplicates | None

    @cached_property
    def _stores(self) -> EmbeddingStores:
        raise NotImplementedError

    def _global_labels(self) -> Tensor:
        raise NotImplementedError

    @cached_property
    def copies(self) -> Copies:
        """Photos that occur more than once; read this in all processes before the first task.

        If copies are left out, they leave the plan, and the embedding cache gives each the embedding of the photo
        that is learned.
        """
        if self.duplicates is None:
            return NONE
        tasks = self.plan.all_rows(self.learner.learned_tasks)
        copies = find_copies(self.source, tasks, self.train_hashes, self.test_hashes)
        if self.duplicates == "leave_out":
            self.plan.left_out = copies.left_out(len(self.source.train))
            if isinstance(self.source.train, ImageSet) and self._stores.train is not None:
                self._stores.train.copies = copies.of_first()
        return copies

    @cached_property
    def train_hashes(self) -> ContentHashes:
        """Content hashes of the training samples."""
        return self._hashes_of(self.source.train)

    @cached_property
    def test_hashes(self) -> ContentHashes:
        """Content hashes of the test samples."""
        return self._hashes_of(self.source.val)

    def _hashes_of(self, samples: SampleSet) -> ContentHashes:
        if not isinstance(samples, ImageSet):
            return ContentHashes(samples)
        cache = self._stores.train if samples is self.source.train else self._stores.val
        return ContentHashes(samples, None if cache is None else cache.hashes)

    def known_test_embeddings(self, rows: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """Return the test embeddings that are in memory.

        Args:
            rows: (n,) positions of test samples.

        Returns:
            The positions (m,) of those that are in memory, and their embeddings (m, d).
        """
        images = self.source.val
        if isinstance(images, EmbeddingSet):
            return rows, images.get(rows)
        known_rows, parts = [rows[:0]], []
        for store in (store for store in (self._stores.memory, self._stores.val) if store is not None):
            known = store.known(rows)
            if known.any():
                known_rows.append(rows[known])
                parts.append(store.get(rows[known]))
            rows = rows[~known]
        return np.concatenate(known_rows), torch.cat(parts) if parts else torch.zeros(0, 1)

    def learner_labels(self, rows: np.ndarray) -> np.ndarray:
        """Return the learner's labels (n,) of test samples ``rows``."""
        labels: np.ndarray = self._global_labels().numpy()[self.source.val.labels[rows]]
        return labels
