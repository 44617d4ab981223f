"""How the processes of a Trainer learn together: they add their statistics."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import torch.distributed
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators.cpu import CPUAccelerator
from lightning.pytorch.overrides.distributed import _sync_module_states
from lightning.pytorch.strategies import (
    DDPStrategy,
    SingleDeviceStrategy,
    StrategyRegistry,
)
from lightning.pytorch.utilities import rank_zero_only
from torch.distributed import distributed_c10d

from cifnet_pl.backbones.engines import check_precision
from cifnet_pl.utilities.errors import CifnetError, UsageError
from cifnet_pl.utilities.processes import RANKS
from cifnet_pl.utilities.text import print_text

LOST_PROCESS_SIGNS = (
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "remote process exited",
)
"""Parts of a RuntimeError's message where another process ended."""


MEETING_SECONDS = 120
"""How long the processes of a run wait for each other at its start."""


NOT_MET = (
    "the processes of this run did not meet: start all of them; where a node's name is its loopback"
    " address, as Debian has it, set GLOO_SOCKET_IFNAME (for GPUs NCCL_SOCKET_IFNAME) to the"
    " network's interface on each node"
)


def _end_without_meeting() -> None:
    """End this process, which waits in a library."""
    print_text(f"cifnet: error: {NOT_MET}", sys.stderr)
    os._exit(CifnetError.exit_code)


class StatisticsDDPStrategy(DDPStrategy):
    """Lightning's DDP launcher, process group and reductions, without its gradient wrapper.

    For modules in which nothing has a gradient: their statistics are added over processes in
    :meth:`ModelLearner.add_up <cifnet_pl.model.task_learner.ModelLearner.add_up>` and
    :meth:`Sums.reduce <cifnet_pl.statistics.Sums.reduce>`. And for those that declare
    ``averages_gradients = True``, as they average gradients by themselves.
    """

    strategy_name = "ddp"

    def setup_distributed(self) -> None:
        """Meet the other processes; none waits for good for those that cannot be reached.

        Raises:
            CifnetError: they did not meet within ``MEETING_SECONDS``.
        """
        lasting = self._timeout
        self._timeout = timedelta(seconds=MEETING_SECONDS)
        # Gloo waits without a limit for a process that connects to another address.
        alarm = threading.Timer(MEETING_SECONDS + 10, _end_without_meeting)
        alarm.daemon = True
        alarm.start()
        try:
            super().setup_distributed()
        except RuntimeError as error:
            raise CifnetError(NOT_MET) from error
        finally:
            alarm.cancel()
            self._timeout = lasting
        # Before torch 2.13 it has no public name.
        set_timeout: Any = getattr(
            torch.distributed, "set_timeout", distributed_c10d._set_pg_timeout
        )
        set_timeout(lasting)

    def configure_ddp(self) -> None:
        """Give all processes the same tensors; wrap modules that leave gradients to Lightning."""
        assert self.model is not None
        averages = getattr(self.lightning_module, "averages_gradients", False)
        if any(p.requires_grad for p in self.model.parameters()) and not averages:
            super().configure_ddp()
        else:
            _sync_module_states(self.model)


@contextmanager
def process_group() -> Iterator[None]:
    """Within the block, the processes of a run learn together; they leave the group at its end.

    The strategy is registered as "ddp", so that ``strategy: auto`` finds it too. Without leaving,
    the interpreter is aborted if it ends before gloo's threads. After an error an NCCL group is not
    left, as that would wait for processes that may be gone.

    Raises:
        CifnetError: another process of the run ended.
    """
    StrategyRegistry.register(
        "ddp",
        StatisticsDDPStrategy,
        description=StatisticsDDPStrategy.__doc__,
        override=True,
        start_method="popen",
    )
    tasks = int(os.environ.get("SLURM_NTASKS", "1"))
    started = os.environ.get("SLURM_STEP_NUM_TASKS", "1")  # by srun, as one step
    if tasks > 1 and started == "1":
        # A notebook, a shell, or a batch script without ``srun`` in a job of several tasks:
        # Lightning would take the process for one of several, and wait for the others.
        del os.environ["SLURM_NTASKS"]
    if "MASTER_PORT" not in os.environ and not SLURMEnvironment.detect():
        become_first_process()  # whoever starts several processes says where they meet
    backends = {"gloo"}
    try:
        yield
        backends.add("nccl")
    except RuntimeError as error:
        if not any(sign in str(error) for sign in LOST_PROCESS_SIGNS):
            raise
        raise CifnetError(
            "another process of this run ended: its own message says why"
        ) from error
    finally:
        distributed = torch.distributed
        if distributed.is_initialized() and distributed.get_backend() in backends:
            distributed.destroy_process_group()


def become_first_process() -> None:
    """Forget the ranks that another program left in the environment: this run is one process."""
    for name in RANKS:
        os.environ.pop(name, None)
    cast(Any, rank_zero_only).rank = 0


def prepare_processes(trainer: Trainer) -> None:
    """Check the processes that a Trainer will start; a single one forgets the ranks of others.

    Raises:
        UsageError: the Trainer expects another number than torchrun started, would start more
            processes on this machine than it has cores, would wait for other machines that do not
            know where this one is, or does not fit in another way (:func:`check_trainer`).
    """
    check_trainer(trainer)
    cores = os.cpu_count() or 1
    on_cpu = isinstance(trainer.accelerator, CPUAccelerator)
    started_elsewhere = "MASTER_PORT" in os.environ
    if on_cpu and not started_elsewhere and trainer.num_devices > cores:
        raise UsageError(
            f"--trainer.devices is {trainer.num_devices}, this machine has {cores} cores: give at"
            " most that many"
        )
    environment = getattr(trainer.strategy, "cluster_environment", None)
    is_alone = isinstance(environment, LightningEnvironment)
    if trainer.num_nodes > 1 and is_alone and "MASTER_ADDR" not in os.environ:
        raise UsageError(
            f"--trainer.num_nodes is {trainer.num_nodes}, and no machine is named where all meet:"
            " set MASTER_ADDR, MASTER_PORT and NODE_RANK on each, or use torchrun"
        )
    started = int(os.environ.get("WORLD_SIZE") or 1)
    expected = trainer.num_devices * trainer.num_nodes
    if TorchElasticEnvironment.detect() and started != expected:
        raise UsageError(
            f"torchrun started {started} processes, the Trainer expects {expected}: "
            "--trainer.devices times --trainer.num_nodes must be that number"
        )
    if trainer.world_size == 1:
        become_first_process()


def check_trainer(trainer: Trainer) -> None:
    """Check a Trainer, however it was made.

    Raises:
        UsageError: its precision would round the statistics, its processes would not learn
            together, or it would learn from no batch or evaluate none.
    """
    check_precision(str(trainer.precision))
    for name in ("limit_train_batches", "limit_val_batches"):
        if getattr(trainer, name) == 0:
            raise UsageError(
                f"{name} is 0, so that nothing is learned or nothing is evaluated: leave it out, or"
                " give 1 or more"
            )
    if trainer.val_check_interval not in (None, 1.0):
        raise UsageError(
            f"val_check_interval is {trainer.val_check_interval}, but each task is evaluated once"
            " it is learned: leave it out"
        )
    strategy = trainer.strategy
    # Others wait for gradients, shard them, or lose the results of processes that they spawn.
    if not isinstance(strategy, SingleDeviceStrategy | StatisticsDDPStrategy):
        raise UsageError(
            f"{type(strategy).__name__} does not add up the statistics of processes: use auto or"
            " ddp, in Python cifnet_pl.learning.strategy.StatisticsDDPStrategy()"
        )
