"""Take steps of SGD on any part of a network, in mixed precision and in several processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
import torch.distributed
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import SGD


class Descent:
    """SGD on the parts of a network that learn, with loss scaling if the precision is float16.

    Gradients and the running statistics of batch normalisation are averaged over processes after each step's backward
    pass, in one message. DistributedDataParallel could not do this: the network grows from task to task, with parts
    that are frozen or unused.

    Args:
        module: whose Trainer computes the gradients.
        parts: modules that learn; their parameters with ``requires_grad`` are descended on.
        learning_rate, momentum, weight_decay: of SGD.
    """

    def __init__(
        self,
        module: LightningModule,
        parts: Iterable[nn.Module],
        learning_rate: float,
        momentum: float,
        weight_decay: float,
    ):
        self._module, parts = module, list(parts)
        self.weights = [p for learned in parts for p in learned.parameters() if p.requires_grad]
        self._running = [b for learned in parts for b in learned.buffers() if b.is_floating_point()]
        self._optimizer = SGD(self.weights, learning_rate, momentum=momentum, weight_decay=weight_decay)
        self.learning_rate = learning_rate
        self._scaler = getattr(module.trainer.precision_plugin, "scaler", None)
        if self._scaler is not None:  # a task begins with the scale of a fresh run, so that it can be repeated
            fresh = torch.amp.GradScaler(module.device.type)
            self._scaler.load_state_dict(fresh.state_dict())

    def step(self, loss: Tensor, factor: float) -> float:
        """Take one step; a loss that is not finite changes nothing.

        Args:
            loss: () of this process.
            factor: of the learning rate.

        Returns:
            The loss over all processes.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate * factor
        self._optimizer.zero_grad()
        self._module.manual_backward(loss)
        value = self._average(loss)
        if not torch.isfinite(torch.tensor(value)):
            return value
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        return value

    def _average(self, loss: Tensor) -> float:
        """Average loss, gradients and running statistics over processes; return the loss."""
        if self._module.trainer.world_size == 1:
            return float(loss.detach())
        for p in self.weights:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        shared = [cast(Tensor, p.grad) for p in self.weights] + self._running
        flat = torch.cat([loss.detach().reshape(1).float(), *(t.reshape(-1).float() for t in shared)])
        torch.distributed.all_reduce(flat)
        flat /= self._module.trainer.world_size
        parts = torch.split(flat[1:], [t.numel() for t in shared])
        for tensor, mean in zip(shared, parts, strict=True):
            tensor.copy_(mean.view_as(tensor))
        return float(flat[0])

    def state_dict(self) -> dict[str, Any]:
        """Return the momenta and loss scale."""
        scale = self._scaler.state_dict() if self._scaler is not None else {}
        return {"optimizer": self._optimizer.state_dict(), "scaler": scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with stored momenta and a stored loss scale."""
        self._optimizer.load_state_dict(state["optimizer"])
        if self._scaler is not None and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])


class _Gather(torch.autograd.Function):
    """Rows of all processes, (n_0 + n_1 + …, …); the gradient of a process's rows is summed over all of them."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, sizes: Sequence[int], rank: int) -> Tensor:
        ctx.sizes, ctx.rank = sizes, rank
        padded = local.new_zeros(max(sizes), *local.shape[1:])
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in sizes]
        torch.distributed.all_gather(parts, padded)
        return torch.cat([gathered[:size] for gathered, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        grad = grad.contiguous()
        torch.distributed.all_reduce(grad)
        return torch.split(grad, list(ctx.sizes))[ctx.rank], None, None


def gathered(local: Tensor, world: int, rank: int) -> Tensor:
    """Return the rows of all processes, in the order of their ranks; gradients flow back to each.

    Args:
        local: (n, …) rows of this process.
        world: number of processes.
        rank: number of this process.
    """
    if world == 1:
        return local
    size = torch.tensor([len(local)], device=local.device)
    sizes = [torch.zeros_like(size) for _ in range(world)]
    torch.distributed.all_gather(sizes, size)
    return cast(Tensor, cast(Any, _Gather).apply(local, [int(s) for s in sizes], rank))
