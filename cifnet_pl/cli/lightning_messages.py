"""Silence messages of Lightning that are wrong or of no use here."""

from __future__ import annotations

import logging
import warnings

QUIET_WARNINGS = (
    r".*does not have many workers.*",
    r".*in eval mode at the start of training.*",
    r".*configure_optimizers.*returned.*None.*",
    r".*GPU available but not used.*",
    r".*isinstance\(treespec, LeafSpec\).*",
    r".*smaller than the logging interval.*",
    r".*LightningCLI's args parameter.*",
    r".*Couldn't infer the batch indices.*",
    r".*Total length of .* across ranks is zero.*",
)
QUIET_NEWS = (
    "`Trainer.fit` stopped",
    "💡 Tip",
    "TPU available",
    "HPU available",
    "GPU available",
    "Seed set to",
    "Restoring states from",
    "Restored all states",
    "Loaded model weights",
    "Initializing distributed",
    "distributed_backend=",
    "CUDA_VISIBLE_DEVICES: ",
    "that has Tensor Cores",  # sums are in float64, or wanted to be exact in float32
    "Automatic Mixed Precision",
)
LOGGERS = (
    "lightning.pytorch.utilities.rank_zero",
    "lightning.fabric.utilities.rank_zero",
    "lightning.fabric.utilities.seed",
    "lightning.fabric.utilities.distributed",
    "lightning.pytorch.accelerators.cuda",
)


def quieten() -> None:
    """Silence advice that is wrong for a run without gradients, and messages that the run's own lines replace."""
    for message in QUIET_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return not any(pattern in text for pattern in QUIET_NEWS)
