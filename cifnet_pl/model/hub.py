"""Share models on the Hugging Face hub: a bundle and a card in a repository, ``hf:user/model``.

A model of the hub is a bundle as any other: safetensors and JSON, checked before anything is used,
never executed. The network is only used where that is asked for.
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from cifnet_pl.model.bundle import CONFIG
from cifnet_pl.utilities.errors import CheckpointError, UsageError, explained
from cifnet_pl.utilities.files import rendered, write_text
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import one_line, printable

if TYPE_CHECKING:
    from cifnet_pl.model.classifier import Classifier

TEMPLATE = Path(__file__).parent / "templates" / "card.md"

SCHEME = "hf:"
TENSORS = "tensors-*.safetensors"


def model_card(model: Classifier, repository: str) -> str:
    """Return the card: what the model knows, how it was made, and how to use it.

    Args:
        model: the model.
        repository: ``user/model``.
    """
    return rendered(
        TEMPLATE,
        model=model,
        images=model.backbone.takes_images,
        repository=repository,
        backbone=printable(model.backbone.name),
        head=type(model.head).__name__,
        learned=f"{sum(model.counts.values()):,}",
        elements=f"{sum(model.state_elements().values()):,}",
        names=[escaped(name) for name in model.class_names],
    )


def escaped(text: str) -> str:
    """Return a name as plain text of Markdown: no markup, no HTML, on one line."""
    return re.sub(r"([\\`*_{}\[\]()#+!|<>~&$-])", r"\\\1", printable(text))


def fetch(name: str, download: bool) -> Path:
    """Return the folder of a bundle of the hub.

    Args:
        name: ``hf:user/model``, or ``hf:user/model@revision`` with a branch, tag or commit.
        download: whether what is not on this machine, or older than on the hub, may be fetched.

    Raises:
        UsageError: the package is missing.
        CheckpointError: there is no such repository, or it cannot be fetched.
    """
    hub = optional("huggingface_hub", name, "hf").HfApi()
    repository, _, revision = name.removeprefix(SCHEME).partition("@")
    unreadable = f"cannot read {printable(name)}"
    with explained(CheckpointError, unreadable, reason=_reason):
        folder = hub.snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=[CONFIG, TENSORS],
            local_files_only=not download,
        )
        return Path(folder)


def push(
    model: Classifier,
    name: str,
    private: bool = False,
    overwrite: bool = False,
) -> str:
    """Put a model on the hub, with a card, in one commit; returns its address.

    Args:
        model: the model.
        name: ``hf:user/model``; the repository is made if it is missing.
        private: whether only its owner may see a repository that is made.
        overwrite: whether the repository may exist already; what is in it is replaced.

    Raises:
        UsageError: the name is no ``hf:user/model``, the package is missing, or the repository
            exists already.
        DataError: a class name that could not be read back.
        CheckpointError: no right to write, or no network.
    """
    if not re.fullmatch("hf:[^/@]+/[^/@]+", name):
        raise UsageError(
            f"'{printable(name)}' names no place on the hub: expected hf:user/model"
        )
    hub = optional("huggingface_hub", name, "hf").HfApi()
    repository = name.removeprefix(SCHEME)
    unwritten = f"cannot write {printable(name)}"
    with (
        TemporaryDirectory() as made,
        explained(CheckpointError, unwritten, reason=_reason),
    ):
        folder = Path(made) / "bundle"
        model.save(folder)
        write_text(folder / "README.md", model_card(model, repository))
        if hub.repo_exists(repository) and not overwrite:
            raise UsageError(
                f"{printable(name)} exists already: choose another name, or add --overwrite true"
            )
        address = hub.create_repo(repository, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message=f"{len(model.class_names)} classes",
            delete_patterns=TENSORS,
        )
    return str(address)


def _reason(error: Exception) -> str:
    """Say why the hub's package, or one of its network packages, failed, and what to do."""
    if type(error).__name__ == "LocalEntryNotFoundError":
        return (
            "it is not on this machine, or the hub cannot be reached; allow the download with"
            " --download true, in Python download=True"
        )
    return (
        f"{one_line(error, 200)}; check the name and the network, or log in with `hf auth login` or"
        " HF_TOKEN"
    )
