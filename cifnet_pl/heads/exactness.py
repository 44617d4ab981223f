"""Protect the numbers that a call stores from the settings around it, such as autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import torch

from cifnet_pl.heads.labels import LabelSpace

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=LabelSpace)


def exact(method: Callable[Concatenate[H, P], R]) -> Callable[Concatenate[H, P], R]:
    """Decorate a method that changes statistics, so that no setting of the caller changes what is stored.

    Inside there is no autograd graph; no autocast, which would round products to bfloat16; and no inference mode, whose
    tensors could never be updated in place again.
    """

    @functools.wraps(method)
    def wrapped(self: H, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(self.labels.device.type, enabled=False):
            return method(self, *args, **kwargs)

    return wrapped
