"""The command line: everything this package knows about LightningCLI and jsonargparse is in this file."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any, cast

import yaml
from jsonargparse import Namespace
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console

from cifnet_pl import heads
from cifnet_pl.callbacks import (
    EnergyMonitor,
    RunTable,
    TaskCheckpoint,
    TaskMetrics,
    TaskProgressBar,
    TrajectoryPlot,
)
from cifnet_pl.callbacks.checkpoint import AtomicCheckpointIO
from cifnet_pl.data import CIFNetDataModule
from cifnet_pl.distributed import check_strategy, register_strategy
from cifnet_pl.errors import CheckpointError, UsageError, unknown_name
from cifnet_pl.learner import TaskModule
from cifnet_pl.storage import write_text

LOG_FOLDER = "lightning_logs"
TRAINER_DEFAULTS: dict[str, Any] = {
    "num_sanity_val_steps": 0,
    "reload_dataloaders_every_n_epochs": 1,
    "use_distributed_sampler": False,
    "log_every_n_steps": 1,
    "enable_model_summary": False,
    "callbacks": None,
}


class SaveConfig(SaveConfigCallback):
    """Writes ``config.yaml`` atomically, without the checkpoint that the run started from: it re-runs as it is."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the configuration when a run starts to learn."""
        if stage == "fit" and trainer.is_global_zero and trainer.log_dir:
            config = self.config.clone()
            config.pop("ckpt_path", None)
            write_text(Path(trainer.log_dir) / "config.yaml", self.parser.dump(config, skip_none=False))


class CIFNetCLI(LightningCLI):
    """``fit``, ``validate``, ``test`` and ``predict`` from YAML files and options."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the experiment's name, the energy options, and derive what need not be said twice."""
        parser.add_argument("--experiment", default="default", help="name of the run's folder under lightning_logs/")
        parser.add_argument("--logs", default=LOG_FOLDER, help="folder that holds all experiments")
        parser.add_lightning_class_args(EnergyMonitor, "energy")
        parser.add_lightning_class_args(TaskCheckpoint, "checkpoint")
        parser.link_arguments("data", "trainer.max_epochs", lambda data: data.n_tasks, apply_on="instantiate")
        parser.set_defaults({"trainer.logger": False, "model": {"class_path": "cifnet_pl.CIFNetModule"}})

    def _parse_ckpt_path(self) -> None:
        """Never let a checkpoint override the given settings: the module compares both and says what differs."""

    def before_instantiate_classes(self) -> None:
        """Seed the buffer and the projections, place the run, and refuse strategies that lose what they learn."""
        config = self._own
        seed = config.get("seed_everything")
        if isinstance(seed, int) and not isinstance(seed, bool):
            for part in ("head", "buffer"):
                options = config.get(f"model.init_args.{part}.init_args")
                if options is not None and "seed" in options:
                    options["seed"] = seed
        check_strategy(config.trainer.strategy)
        if str(config.trainer.precision) in ("bf16-true", "16-true", "transformer-engine"):
            raise UsageError(
                f"precision {config.trainer.precision} would cast the statistics: use bf16-mixed or 16-mixed"
            )
        self.run_folder = self._place_run(config)

    @property
    def _own(self) -> Namespace:
        return cast(Namespace, self.config[self.subcommand] if self.subcommand else self.config)

    def _place_run(self, config: Namespace) -> Path:
        """A fresh ``version_N``, or the newest one for ``--ckpt_path last``, whose checkpoint is then named."""
        base = Path(str(config.logs)) / str(config.experiment)
        if Path(config.experiment).name != config.experiment:
            raise UsageError(f"experiment '{config.experiment}' is not a plain name")
        versions = sorted(_versions(base))
        if config.get("ckpt_path") != "last":
            if config.get("ckpt_path") and not Path(config.ckpt_path).is_file():
                raise CheckpointError(f"no checkpoint at {config.ckpt_path}")
            return _folder_of_rank_zero(base, versions)
        checkpoints = [base / f"version_{v}" / "checkpoints" / "last.ckpt" for v in versions]
        if self.subcommand != "fit":
            present = [path for path in checkpoints if path.is_file()]
            if not present:
                raise CheckpointError(f"no run of experiment '{config.experiment}' with a checkpoint in {base}")
            self._set_checkpoint(present[-1])
            return present[-1].parent.parent
        if not versions:
            print(
                f"no run of experiment '{config.experiment}' in {config.logs}: starting with task 1",
                flush=True,
            )
            self._set_checkpoint(None)
            return _folder_of_rank_zero(base, versions)
        if not checkpoints[-1].is_file():
            print(f"{checkpoints[-1].parent.parent} has no checkpoint yet: starting with task 1", flush=True)
        self._set_checkpoint(checkpoints[-1] if checkpoints[-1].is_file() else None)
        return checkpoints[-1].parent.parent

    def _set_checkpoint(self, path: Path | None) -> None:
        self._own["ckpt_path"] = str(path) if path else None

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the logger and the atomic checkpoint writer."""
        folder = self.run_folder
        logger = TensorBoardLogger(
            folder.parent.parent, name=folder.parent.name, version=folder.name, default_hp_metric=False
        )
        plugins = self._get(self.config_init, "trainer").get("plugins") or []
        plugins = [*(plugins if isinstance(plugins, list) else [plugins]), AtomicCheckpointIO()]
        return super().instantiate_trainer(**{"logger": logger, "plugins": plugins, **kwargs})

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        # Linked values live in the instantiated configuration, the checkpoint was placed in the parsed one.
        found = super()._prepare_subcommand_kwargs(subcommand)
        found["ckpt_path"] = self._own.get("ckpt_path")
        if "weights_only" in found:
            found["weights_only"] = True
        return found

    def predict(self, model: LightningModule, datamodule: CIFNetDataModule, **kwargs: Any) -> None:
        """Predict the test images of all classes seen, into ``predictions.csv`` of the run's folder."""
        from cifnet_pl.record import to_csv

        kwargs.pop("return_predictions", None)
        results = self.trainer.predict(model, datamodule=datamodule, return_predictions=True, **kwargs)
        assert isinstance(model, TaskModule)
        images = datamodule.source.val
        rows = [
            (images.names[int(row)], datamodule.source.class_names[int(images.labels[int(row)])],
             model.class_names[int(label)], f"{float(p):.6f}")
            for batch in results or [] for row, label, p in zip(*batch, strict=True)
        ]  # fmt: skip
        target = self.run_folder / "predictions.csv"
        write_text(target, to_csv(["file", "true_class", "class", "probability"], sorted(rows)))
        print(f"{len(rows)} predictions in {target}")


def _versions(base: Path) -> list[int]:
    if not base.is_dir():
        return []
    names = [entry.name.removeprefix("version_") for entry in base.iterdir() if entry.name.startswith("version_")]
    return [int(name) for name in names if name.isdigit()]


FOLDER_VARIABLE = "CIFNET_RUN_FOLDER"


def _folder_of_rank_zero(base: Path, versions: list[int]) -> Path:
    """A fresh version folder; processes that Lightning starts later inherit the first one's choice."""
    if "LOCAL_RANK" in os.environ and FOLDER_VARIABLE in os.environ:
        return Path(os.environ[FOLDER_VARIABLE])
    folder = base / f"version_{max(versions, default=-1) + 1}"
    os.environ[FOLDER_VARIABLE] = str(folder)
    return folder


# ---------------------------------------------------------------------- checks before parsing


def check_names(args: list[str]) -> None:
    """Check the names of heads in options and YAML files first: jsonargparse would answer with a wall of text.

    Raises:
        UsageError: an unknown head, with the nearest names; a configuration file that is missing or not YAML.
    """
    for i, arg in enumerate(args):
        key, _, value = arg.partition("=")
        value = value or (args[i + 1] if i + 1 < len(args) else "")
        if key in ("--config", "-c"):
            _check_head(_head_of(_read_yaml(Path(value))))
        elif key in ("--model.head", "--model.init_args.head"):
            _check_head(value)


def _read_yaml(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"configuration file {path} does not exist")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"configuration file {path} is not YAML: {' '.join(str(error).split())}") from error


def _head_of(config: Any) -> Any:
    for key in ("model", "init_args", "head"):
        inner = config.get(key) if isinstance(config, dict) else None
        if key == "init_args" and inner is None:
            continue
        config = inner
    return config.get("class_path") if isinstance(config, dict) else config


def _check_head(name: Any) -> None:
    known = [n for n in heads.__all__ if n != "Head"]
    if isinstance(name, str) and "." not in name and not name.startswith(("{", "-")) and name not in known:
        raise unknown_name("head", name, known)


def run(args: list[str]) -> None:
    """Run one sub-command.

    Raises:
        CifnetError: bad input; any other exception is a fault of the package.
    """
    from cifnet_pl.commands import COMMANDS, run_command

    if args and args[0] in COMMANDS:
        run_command(args[0], args[1:])
        return
    check_names(args)
    _quieten()
    register_strategy()
    bar: list[Any] = [TaskProgressBar()] if Console().is_terminal else []
    CIFNetCLI(
        LightningModule,
        CIFNetDataModule,
        save_config_callback=SaveConfig,
        subclass_mode_model=True,
        seed_everything_default=1,
        trainer_defaults={
            **TRAINER_DEFAULTS,
            "enable_progress_bar": bool(bar),
            "callbacks": [TaskMetrics(), TrajectoryPlot(), RunTable(), *bar],
        },
        auto_configure_optimizers=False,
        args=None if args == sys.argv[1:] else args,
    )


def _quieten() -> None:
    """Silence advice that is wrong for a run without gradients."""
    for message in (
        r".*does not have many workers.*",
        r".*in eval mode at the start of training.*",
        r".*configure_optimizers.*returned.*None.*",
        r".*GPU available but not used.*",
        r".*isinstance\(treespec, LeafSpec\).*",
        r".*smaller than the logging interval.*",
        r".*LightningCLI's args parameter.*",
    ):
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return not any(part in text for part in ("`Trainer.fit` stopped", "💡 Tip", "TPU available", "HPU available"))
