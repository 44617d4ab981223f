"""Run ``fit``, ``validate``, ``test`` and ``predict`` with LightningCLI."""

from contextlib import ExitStack
from typing import Any

from jsonargparse import set_dumper
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import (
    LightningArgumentParser,
    LightningCLI,
)
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console

from cifnet_pl.cli.commands import TRAINER_COMMANDS, help_on_topic
from cifnet_pl.cli.parsing import (
    DEFAULT_HEAD,
    OneSentence,
    choose_backbone,
    open_seeds,
    with_clean_heads,
    with_recommended,
)
from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.learning.callbacks import (
    EnergyMonitor,
    PredictionRecord,
    PredictionTable,
    TaskCheckpoint,
    run_callbacks,
)
from cifnet_pl.learning.columns import import_metrics
from cifnet_pl.learning.strategy import (
    prepare_processes,
    process_group,
)
from cifnet_pl.utilities import run_folders as runs
from cifnet_pl.utilities.errors import UsageError, explained
from cifnet_pl.utilities.files import dump_yaml
from cifnet_pl.utilities.plugins import current_folder_importable
from cifnet_pl.utilities.processes import is_first_process

DEFAULT_MODEL = "cifnet_pl.CIFNetModule"

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
    """

    def __init__(self, command: str, args: list[str]):
        self.command = command
        super().__init__(
            LightningModule,
            CIFNetDataModule,
            save_config_callback=None,
            trainer_defaults={
                "use_distributed_sampler": False,
                "log_every_n_steps": 1,
                "enable_model_summary": False,
                "logger": False,
            },
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
            load_from_checkpoint_support=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of the experiment, energy, predictions and checkpoints; link others."""
        parser.add_function_arguments(runs.experiment_folder, as_group=False)
        checkpoint = "last, or a file: go on, or evaluate, from there"
        parser.add_argument("--ckpt_path", type=str | None, help=checkpoint)
        parser.add_lightning_class_args(EnergyMonitor, "energy")
        parser.add_lightning_class_args(PredictionRecord, "predictions")
        parser.add_lightning_class_args(TaskCheckpoint, "checkpoint")
        metrics = (
            "metrics of torchmetrics, by their imports, to measure after each task"
        )
        parser.add_argument("--metrics", type=str, nargs="*", default=[], help=metrics)
        head = {"class_path": f"cifnet_pl.heads.{DEFAULT_HEAD}"}
        model = {"class_path": DEFAULT_MODEL, "init_args": {"head": head}}
        parser.set_defaults({"model": model})

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the arguments, and find the seeds of module, buffer and head that none names."""
        super().parse_arguments(parser, args)
        model = [f"--model={DEFAULT_MODEL}", f"--model.head={DEFAULT_HEAD}"]
        self._open_seeds = open_seeds(parser, self.config, [*model, *args])

    def _set_seed(self) -> None:
        """Seed everything; UsageError if the seed is out of range."""
        with explained(UsageError, "seed_everything", ValueError):
            super()._set_seed()

    def before_instantiate_classes(self) -> None:
        """Seed what has no seed of its own, choose the folder, and refuse max_epochs."""
        config = self.config
        if config.trainer.max_epochs is not None:
            raise UsageError(
                "--trainer.max_epochs cannot be set, a task is one epoch: use --data.max_tasks or"
                " --data.classes_per_task"
            )
        if config.seed_everything is not False:
            for name in self._open_seeds:
                config[name] = config.seed_everything
        choose_backbone(config)
        base = runs.experiment_folder(config.experiment, config.logs)
        if self.command == "fit":
            self.place = runs.place_fit(base, config.ckpt_path)
        else:
            self.place = runs.place_evaluation(base, config.ckpt_path, config.config)
        if self.place.message and is_first_process():
            print(self.place.message, flush=True)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the callbacks that measure and write a run."""
        config = ""
        if self.command == "fit":
            runs.check_same_tasks(self.place, self.config.data.as_dict())
            config = self._stored_config()
        options = self.config_init.trainer
        bar = options.enable_progress_bar
        if bar is None:
            bar = Console().is_terminal
        kwargs["enable_progress_bar"] = bar
        if self.config_init.metrics:
            self.model.metrics = import_metrics(self.config_init.metrics)
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
        # Where Lightning puts checkpoints that SLURM asks for.
        root = options.default_root_dir or self.place.folder.parent
        kwargs["default_root_dir"] = str(root)
        wrong = (ValueError, TypeError, RuntimeError)
        with explained(UsageError, UNFIT, *wrong):
            trainer = super().instantiate_trainer(**kwargs)
        predictions = self.config_init.predictions
        if not predictions.every_task:
            trainer.callbacks.remove(predictions)  # type: ignore[attr-defined]
        prepare_processes(trainer)
        return trainer

    def _stored_config(self) -> str:
        """Return the content of the run's ``config.yaml``."""
        stored = self.config.clone()
        stored.pop("ckpt_path")  # where this start of the run began
        for name in self._open_seeds:  # they follow seed_everything again
            stored.pop(name)
        return str(self.parser.dump(stored, skip_unset=False, skip_validation=True))


def run(args: list[str], topic: str) -> None:
    """Run one sub-command.

    Args:
        args: arguments of the command line, the sub-command first.
        topic: of its help.

    Raises:
        CifnetError: bad input; any other exception is a fault of the package.
    """
    command, *options = args
    CLIParser.topic = topic
    if topic == "model":
        options = ["--model.help", "CIFNetModule"]
    set_dumper("yaml", dump_yaml)
    # Lightning may refuse an option at any moment.
    refused = explained(UsageError, UNFIT, MisconfigurationException)
    with refused, process_group(), ExitStack() as held:
        options = with_clean_heads(with_recommended(options))
        with current_folder_importable():
            cli = CIFNetCLI(command, options)
        if command == "fit":
            folder = cli.place.folder
            if is_first_process():
                folder = held.enter_context(runs.locked_run(cli.place))
            board = TensorBoardLogger(
                folder, name="", version="", default_hp_metric=False
            )
            cli.trainer.loggers = [board, *cli.trainer.loggers]
        quiet = {}
        if command in ("validate", "test"):
            quiet["verbose"] = False  # RunTable shows the results
        getattr(cli.trainer, command)(
            cli.model,
            datamodule=cli.datamodule,
            ckpt_path=cli.place.checkpoint,
            weights_only=True,
            **quiet,
        )
