"""Help of ``fit``, ``validate``, ``test`` and ``predict``: the usual options on one screen, all others by topic."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cifnet_pl.utilities.errors import unknown_name

TOPICS = ("model", "data", "trainer", "energy", "predictions", "checkpoint", "all")
"""What may follow ``--help``: the sections of a configuration."""

EXAMPLES = {
    "fit": """\
  cifnet fit --data.root photos                 class folders of photos, by the recommended head
  cifnet fit --config quickstart                a configuration of the package: cifnet configs
  cifnet fit --data.root photos --ckpt_path last            go on where that run stopped""",
    "validate": "  cifnet validate --config RUN/config.yaml --ckpt_path last",
    "test": "  cifnet test --config RUN/config.yaml --ckpt_path last",
    "predict": "  cifnet predict --config RUN/config.yaml --ckpt_path last",
}
"""Name of a sub-command → its examples."""

USUAL = """\
the data:
  --data.root PATH              folder or Zip archive with one folder of photos per class
  --data.source NAME            digits, cifar100, embeddings, … (docs/sources.md); folder by default
  --data.classes_per_task N     new classes of each task (10); [50, 10, 10] for uneven ones
  --data.class_order SEED       seed of the order of the classes
  --data.image_size N           side of the squares in pixels; that of the weights by default
  --data.group KIND             what is held back together: near, folder, day, burst, …
  --data.on_corrupt skip        leave out photos that cannot be read
  --data.cache true             keep embeddings on disk for other runs
the model:
  --model.backbone NAME         frozen network: embedded:efficientnet_lite0, timm:NAME, file:PATH, …
  --model.head CLASS            RidgeHead, CIFNetHead, NCMHead, …; with options: --model.head.ridge 0.1
  --model.buffer CLASS          CalibrationBuffer, a few features of each class; null for none
  --model.calibrate true        probabilities that can be believed, by that buffer
  --model CLASS                 a trained method to compare with, as in --config iterative/der
the run:
  --config NAME|FILE            a configuration; options after it change it
  --experiment NAME             name of the run's folder, below --logs (lightning_logs)
  --seed_everything N           seed of buffer, projections and the rest (1)
  --trainer.devices N           GPUs or processes
  --print_config                show the configuration with all options, and stop"""
"""The options that most runs need."""


def usual_help(command: str, summary: str) -> str:
    """Return the text of ``--help`` alone.

    Args:
        command: name of the sub-command.
        summary: what it does.
    """
    parts = [f"usage: cifnet {command} [options]", "", summary, "", "examples:", EXAMPLES[command], "", USUAL, ""]
    more = f"more: cifnet {command} --help TOPIC, of {', '.join(TOPICS)}; --model.head.help RidgeHead for a class"
    return "\n".join([*parts, more])


def topic_of(words: Sequence[str]) -> tuple[bool, str | None]:
    """Return whether help is asked for, and about which topic; None for the usual options.

    Args:
        words: of the command line after the sub-command.

    Raises:
        UsageError: an unknown topic.
    """
    place = next((i for i, word in enumerate(words) if word in ("-h", "--help")), None)
    topic = None if place is None else next(iter(words[place + 1 :]), None)
    if topic is not None and topic not in TOPICS:
        raise unknown_name("topic of --help", topic, TOPICS)
    return place is not None, topic


def about(text: str, topic: str, public: Sequence[str]) -> str:
    """Return a parser's help without the sections of other topics, internal classes and marks of documentation.

    Args:
        text: the whole help.
        topic: one of ``TOPICS``.
        public: modules whose classes may be named.
    """
    text = re.sub(r":\w+:`~?([^`]+)`", r"\1", text).replace("``", "")

    def named(found: re.Match[str]) -> str:
        return found[0] if found[1] in public else ""

    text = re.sub(r"\b(cifnet_pl(?:\.[a-z_0-9]+)*)\.[A-Z]\w+,\s+", named, text)
    text = re.sub(r"\blightning\.LightningModule,\s+", "", text)
    sections = text.strip().split("\n\n")
    if topic == "all":
        sections.sort(key=lambda section: _is_about(section, "trainer"))  # Lightning's last
    else:
        sections = [section for section in sections if _is_about(section, topic)]
    return "\n\n".join(sections) + "\n"


def _is_about(section: str, topic: str) -> bool:
    return re.search(rf"^  --{topic}\b", section, re.MULTILINE) is not None
