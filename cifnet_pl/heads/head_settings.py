"""Describe a head apart from what it learned: its settings, empty heads like it, the shapes of its tensors."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from cifnet_pl.heads.hooks import Hooks
from cifnet_pl.heads.samples import Samples
from cifnet_pl.heads.shapes import Sizes, grown_sizes
from cifnet_pl.utilities.errors import UsageError

H = TypeVar("H", bound="StoredHead")


class StoredHead(Hooks):
    """A head that can be written down as its settings and its tensors, and built again from them."""

    @abstractmethod
    def begin_task(self, classes: Sequence[int], counts: Sequence[int] | None = None) -> None:
        """Open a task that introduces ``classes``; ``counts`` are their numbers of samples where known."""

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments that a stored state depends on: plain numbers, strings and booleans."""
        try:
            settings = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        except AttributeError as error:
            raise UsageError(f"each argument of {type(self).__name__}() must be an attribute, too: {error}") from error
        return {name: str(v).removeprefix("torch.") if name == "dtype" else v for name, v in settings.items()}

    @classmethod
    def from_settings(cls: type[H], settings: Mapping[str, Any]) -> H:
        """Return an empty head into which a state with these ``settings()`` can be loaded."""
        return cls(**settings)

    def fresh(self: H) -> H:
        """Return an empty head that merges with this one, on the same device."""
        return type(self).from_settings(self.settings()).to(self.labels.device)

    def expected_shapes(self, task_sizes: Sequence[int]) -> dict[str, Sizes]:
        """Return the sizes that the stored tensors of a head with these settings have, by name.

        Heads with tensors for each task override this.

        Args:
            task_sizes: number of classes of each task.
        """
        with_one, with_two = (self._shapes_with(classes) for classes in (1, 2))
        samples = {f"{name}." for name, module in self.named_modules() if isinstance(module, Samples)}
        return {
            name: grown_sizes(one, with_two[name], sum(task_sizes), name[: name.rfind(".") + 1] in samples)
            for name, one in with_one.items()
        }

    def _shapes_with(self, classes: int) -> dict[str, tuple[int, ...]]:
        fresh = self.fresh()
        fresh.begin_task(range(classes), [1] * classes)
        return {name: tuple(tensor.shape) for name, tensor in fresh.state_dict().items()}
