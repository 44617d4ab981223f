"""Run ``fit``, ``validate``, ``test`` and ``predict`` with LightningCLI."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from jsonargparse import set_dumper
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import (
    LightningArgumentParser,
    LightningCLI,
)
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException
from rich.console import Console

from cifnet_pl.cli.commands import TRAINER_COMMANDS, help_on_topic, topic_of
from cifnet_pl.cli.configs import choose_backbone, with_recommended
from cifnet_pl.cli.parsing import (
    DEFAULT_HEAD,
    OneSentence,
    own_errors,
    with_clean_heads,
)
from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.learning.callbacks import (
    EnergyMonitor,
    PredictionRecord,
    PredictionTable,
    TaskCheckpoint,
    run_callbacks,
)
from cifnet_pl.learning.strategy import (
    check_strategy,
    prepare_processes,
    process_group,
)
from cifnet_pl.utilities import run_folders as runs
from cifnet_pl.utilities.errors import UsageError, explained
from cifnet_pl.utilities.files import dump_yaml, is_first_process
from cifnet_pl.utilities.plugins import current_folder_importable

DEFAULT_MODEL = {
    "class_path": "cifnet_pl.CIFNetModule",
    "init_args": {"head": {"class_path": f"cifnet_pl.heads.{DEFAULT_HEAD}"}},
}
TRAINER_DEFAULTS: dict[str, Any] = {
    "use_distributed_sampler": False,
    "log_every_n_steps": 1,
    "enable_model_summary": False,
    "logger": False,
}
UNFIT = "the options of trainer do not fit"


class CLIParser(OneSentence, LightningArgumentParser):
    """Lightning's parser with short errors, and help on one topic."""

    topic = "all"
    """Topic of the help of all parsers, one of :data:`cifnet_pl.cli.commands.TOPICS`."""

    def format_help(self, *given: Any, **options: Any) -> str:
        """Return the help on the topic."""
        return help_on_topic(super().format_help(*given, **options), self.topic)


class CIFNetCLI(LightningCLI):
    """The commands ``fit``, ``validate``, ``test`` and ``predict`` from YAML files and options.

    Args:
        command: one of the four.
        args: arguments of the command line after it.
        held: context that keeps the run's folder locked until it is closed.
    """

    def __init__(self, command: str, args: list[str], held: ExitStack):
        self.command = command
        self._held = held
        super().__init__(
            LightningModule,
            CIFNetDataModule,
            save_config_callback=None,
            trainer_defaults=dict(TRAINER_DEFAULTS),
            seed_everything_default=1,
            parser_kwargs={
                "prog": f"cifnet {command}",
                "description": TRAINER_COMMANDS[command],
            },
            parser_class=CLIParser,
            subclass_mode_model=True,
            args=args,
            run=False,
            auto_configure_optimizers=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of the experiment, energy, predictions and checkpoints; link others."""
        experiment = "name of the run's folder under lightning_logs/"
        parser.add_argument("--experiment", default="default", help=experiment)
        logs = "folder that holds all experiments"
        parser.add_argument("--logs", default="lightning_logs", help=logs)
        checkpoint = "last, or a file: go on, or evaluate, from there"
        parser.add_argument("--ckpt_path", type=str | None, help=checkpoint)
        parser.add_lightning_class_args(EnergyMonitor, "energy")
        parser.add_lightning_class_args(PredictionRecord, "predictions")
        parser.add_lightning_class_args(TaskCheckpoint, "checkpoint")
        parser.set_defaults({"model": DEFAULT_MODEL})

    def _set_seed(self) -> None:
        """Seed everything; UsageError if the seed is out of range."""
        with explained(UsageError, "seed_everything", ValueError):
            super()._set_seed()

    def before_instantiate_classes(self) -> None:
        """Seed module, buffer and head, choose the run's folder, and refuse unfit strategies."""
        config = self.config
        if config.trainer.max_epochs is not None:
            raise UsageError(
                "--trainer.max_epochs cannot be set, a task is one epoch: use --data.max_tasks or"
                " --data.classes_per_task"
            )
        if config.seed_everything is not False:
            for prefix in ("", ".head.init_args", ".buffer.init_args"):
                options = config.get(f"model.init_args{prefix}")
                if options is not None and "seed" in options:
                    options["seed"] = config.seed_everything
        choose_backbone(config)
        check_strategy(config.trainer.strategy)
        base = runs.experiment_folder(str(config.logs), str(config.experiment))
        if self.command == "fit":
            self.place = runs.place_fit(base, config.ckpt_path)
        else:
            configs = [Path(str(path)) for path in config.config or []]
            self.place = runs.place_evaluation(base, config.ckpt_path, configs)
        if self.place.message and is_first_process():
            print(self.place.message, flush=True)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the callbacks that measure and write a run."""
        config = ""
        if self.command == "fit":
            runs.check_same_tasks(self.place, self.datamodule.given)
            config = self._stored_config()
        options = self.config_init.trainer
        bar = options.enable_progress_bar
        if bar is None:
            bar = Console().is_terminal
        kwargs["enable_progress_bar"] = bar
        callbacks = run_callbacks(config, bar)
        if self.command == "predict":
            callbacks.append(PredictionTable(self.place.folder))
        # The user's callbacks come after those that measure; Lightning puts checkpoints last.
        own = options.callbacks or []
        if not isinstance(own, list):
            own = [own]
        self.trainer_defaults["callbacks"] = [*callbacks, *own]
        kwargs["callbacks"] = None
        kwargs["max_epochs"] = self.datamodule.n_tasks
        if options.default_root_dir is None:
            # Where Lightning puts checkpoints that SLURM asks for.
            kwargs["default_root_dir"] = str(self.place.folder.parent)
        wrong = (ValueError, TypeError, RuntimeError)
        with explained(UsageError, UNFIT, *wrong):
            trainer = super().instantiate_trainer(**kwargs)
        predictions = self.config_init.predictions
        if not predictions.every_task:
            trainer.callbacks.remove(predictions)  # type: ignore[attr-defined]
        prepare_processes(trainer)
        if self.command == "fit":
            trainer.loggers = [self._board(), *trainer.loggers]
        return trainer

    def _stored_config(self) -> str:
        """Return the content of the run's ``config.yaml``."""
        stored = self.config.clone()
        stored.pop("ckpt_path")  # where this start of the run began
        # It has the number of classes that is learned.
        stored.data.classes_per_task = self.datamodule.given["classes_per_task"]
        return str(self.parser.dump(stored, skip_none=False, skip_validation=True))

    def _board(self) -> TensorBoardLogger:
        """Return the logger of the run's folder, which this process locks if it is the first."""
        folder = self.place.folder
        if is_first_process():
            folder = self._held.enter_context(runs.locked_run(self.place))
        return TensorBoardLogger(
            folder.parent.parent,
            name=folder.parent.name,
            version=folder.name,
            default_hp_metric=False,
        )


QUIET_OPTIONS: dict[str, dict[str, Any]] = {
    "fit": {},
    "validate": {"verbose": False},
    "test": {"verbose": False},
    "predict": {"return_predictions": False},
}
"""Sub-command → options of the Trainer's method; RunTable shows the results."""


def run(args: list[str]) -> None:
    """Run one sub-command.

    Args:
        args: arguments of the command line, the sub-command first.

    Raises:
        CifnetError: bad input; any other exception is a fault of the package.
    """
    command, *options = args
    CLIParser.topic = topic_of(args) or "all"
    if CLIParser.topic == "model":
        options = ["--model.help", "CIFNetModule"]
    quieten()
    set_dumper("yaml", dump_yaml)
    # Lightning may refuse an option at any moment.
    refused = explained(UsageError, UNFIT, MisconfigurationException)
    with refused, signals_end_the_run(), process_group(), ExitStack() as held:
        if command == "fit":
            options = with_recommended(options)
        options = with_clean_heads(options)
        with own_errors(), current_folder_importable():
            cli = CIFNetCLI(command, options, held)
        getattr(cli.trainer, command)(
            cli.model,
            datamodule=cli.datamodule,
            ckpt_path=cli.place.checkpoint,
            weights_only=True,
            **QUIET_OPTIONS[command],
        )


# ---------------------------------------------------------------------- messages


@contextmanager
def signals_end_the_run() -> Iterator[None]:
    """Within the block, a signal ends the program, as Lightning lets it pass for a success or an
    error.
    """
    try:
        yield
    except SIGTERMException as error:
        raise SystemExit(128 + signal.SIGTERM) from error
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


QUIET_WARNINGS = (
    r".*does not have many workers.*",
    r".*in eval mode at the start of training.*",
    r".*configure_optimizers.*returned.*None.*",
    r".*GPU available but not used.*",
    r".*isinstance\(treespec, LeafSpec\).*",
    r".*smaller than the logging interval.*",
    r".*LightningCLI's args parameter.*",
    r".*Couldn't infer the batch indices.*",
    r".*`srun` command is available.*",
    r".*Total length of .* across ranks is zero.*",
)


def quieten() -> None:
    """Silence advice that is wrong without gradients, and messages that the run's lines replace."""
    for message in QUIET_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # This package's own messages go through Lightning's logger of the first process.
    shared = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    shared.setLevel(logging.INFO)
    package = str(Path(__file__).parents[1])
    shared.addFilter(
        lambda record: (
            record.pathname.startswith(package) or record.levelno >= logging.WARNING
        )
    )
