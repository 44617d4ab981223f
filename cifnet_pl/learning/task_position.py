"""Store a module with a closed-form head, and go on inside a task from where its last checkpoint was written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import Head
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.utilities.errors import CheckpointError


class PositionInTask(TaskModule):
    """Goes on inside a task with the same bits: after the batches that are in the sums of a checkpoint.

    A position is stored in checkpoints that :class:`cifnet_pl.learning.callbacks.TaskCheckpoint` writes between two
    batches, by one process. From any other checkpoint a task starts again: a signal may come in the middle of a batch,
    and of several processes only the first one's sums are stored.
    """

    head: Head
    buffer: CalibrationBuffer | None

    def __init__(self) -> None:
        super().__init__()
        self._embedded: list[tuple[Tensor, Tensor]] = []  # embeddings with their labels; not in the sums yet
        self._hashed: list[tuple[list[int], list[int]]] = []  # labels and content hashes of this task's photos
        self._more: list[Head] = []  # what this task brings of known classes; in a list, so that it is no sub-module
        self._learned_batches = 0  # of this task, those before the run was stopped included
        self._left_out = (0, 0)  # a task, and the number of its batches that were learned before
        self._position: dict[str, Any] | None = None
        self._head_inside: dict[str, Tensor] = {}

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """Return the images of a task that are still to be learned (see :meth:`TaskHooks.passes`)."""
        resumed, batches = self._left_out
        return [rows[batches * self.data.rows_per_batch :] if task == resumed else rows]

    def on_fit_start(self) -> None:
        """Take back a task that was under way, and go on inside it where its samples are still the same."""
        super().on_fit_start()
        self._left_out = (0, 0)
        if self._position is None:
            return
        task = len(self.learned_tasks)
        if self.trainer.world_size > 1 or self._position.get("order") != self.data.order_mark(task):
            rank_zero_info(f"task {task + 1} starts again: its samples, their batches or the processes are others now")
            self._position = None
        else:
            self._left_out = (task, int(self._position["batches"]))

    @property
    def goes_on_inside(self) -> bool:
        """Whether the task that is opened next was under way when the run stopped, and goes on there."""
        return self._position is not None

    def go_on(self) -> None:
        """Take over the state inside the task that has just been opened, if the run was stopped there.

        Raises:
            CheckpointError: the state is damaged.
        """
        position, self._position = self._position, None
        self._learned_batches, self._embedded, self._hashed = 0, [], []
        if position is None:
            return
        try:
            self.head.load_state_dict(self._head_inside)
            for head, state in zip(self._more, position["more"], strict=True):
                head.load_state_dict(state)
            self._embedded = [(z.to(self.device), y.to(self.device)) for z, y in position["embedded"]]
            self._hashed = [(position["labels"].tolist(), position["hashes"].tolist())]
            if self.buffer is not None:
                self.buffer.replace_pending(*(part.to(self.device) for part in position["candidates"]))
            self._learned_batches = position["batches"]
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError("the checkpoint is damaged: its position inside a task cannot be read") from error
        self._head_inside = {}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the position inside the task, if a task is under way (see the class)."""
        super().on_save_checkpoint(checkpoint)
        if self.between_batches and self.trainer.world_size == 1:
            labels, hashes = ([value for pair in self._hashed for value in pair[i]] for i in (0, 1))
            checkpoint["position"] = {
                "batches": self._learned_batches,
                "order": self.data.order_mark(self.data.task),
                "embedded": self._embedded,
                "labels": torch.tensor(labels, dtype=torch.int64),
                "hashes": torch.tensor(hashes, dtype=torch.int64),
                "candidates": list(self.buffer.pending()) if self.buffer is not None else [],
                "more": [head.state_dict() for head in self._more],
            }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the position inside a task that was under way."""
        super().on_load_checkpoint(checkpoint)
        position = checkpoint.get("position") if self._under_way else None
        self._position = dict(position) if isinstance(position, Mapping) else None
        if self._position is not None:
            state = checkpoint["state_dict"]
            self._head_inside = {key[5:]: value for key, value in state.items() if key.startswith("head.")}
