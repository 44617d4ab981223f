"""Keep the embeddings of kept photos, so that an answer can show the most similar one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import torch
from torch import Tensor

from cifnet_pl.serving.batches import Scored

PER_CLASS = 100
"""Photos of a class that are compared, the newest."""

AT_ONCE = 8
"""Photos that are embedded at a time: answers that come meanwhile wait for no more than these."""

Submit = Callable[[str], Future[Scored]]
"""Name of a kept photo → its embedding; raises OSError where the file is gone."""


class Gallery:
    """The kept photos of the served version, embedded in the background after every change.

    Args:
        kept: returns the names of the kept photos of each class.
        submit: embeds one photo.
    """

    def __init__(self, kept: Callable[[], Mapping[str, Sequence[str]]], submit: Submit):
        self._kept, self._submit = kept, submit
        self._known: dict[str, Tensor] = {}  # by the hash of the content: right for every version
        self._classes: dict[str, tuple[list[str], Tensor]] = {}
        self._changed, self._ended = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="gallery", daemon=True)
        self._thread.start()

    def update(self) -> None:
        """Start to embed new photos; return at once."""
        self._changed.set()

    def close(self) -> None:
        """Stop the thread that embeds."""
        self._ended = True
        self._changed.set()
        self._thread.join()

    def nearest(self, name: str, z: Tensor) -> str | None:
        """Return the kept photo of a class with the largest cosine to an embedding; None if none is kept.

        Args:
            name: of the class.
            z: (d,).
        """
        files, unit = self._classes.get(name, ([], z.new_zeros(0, len(z))))
        return files[int((unit @ z.cpu().float()).argmax())] if files else None

    def embeddings(self, names: Sequence[str]) -> tuple[list[str], Tensor]:
        """Embed kept photos, and wait for the result.

        Args:
            names: of the photos.

        Returns:
            Names of the photos that can be read, and their embeddings (n, d).
        """
        self._embed([name for name in names if name not in self._known])
        present = [name for name in names if name in self._known]
        return present, torch.stack([self._known[name] for name in present]) if present else torch.zeros(0, 0)

    def _run(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            if self._ended:
                return
            kept = self._kept()
            newest = {name: list(files)[-PER_CLASS:] for name, files in kept.items()}
            self._embed([file for files in newest.values() for file in files if file not in self._known])
            classes = {}
            for name, files in newest.items():
                here = [file for file in files if file in self._known]
                if here:
                    stacked = torch.stack([self._known[file] for file in here])
                    classes[name] = here, torch.nn.functional.normalize(stacked, dim=1)
            self._classes = classes
            wanted = {file for files in kept.values() for file in files}
            for file in [file for file in list(self._known) if file not in wanted]:  # an audit may add others meanwhile
                del self._known[file]

    def _embed(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), AT_ONCE):
            if self._ended:
                return
            waiting = []
            for name in names[start : start + AT_ONCE]:
                try:
                    waiting.append((name, self._submit(name)))
                except Exception:  # gone, or too much to do: it is tried again after the next change
                    continue
            for name, future in waiting:
                if future.exception() is None:
                    self._known[name] = future.result().z.cpu().float()
