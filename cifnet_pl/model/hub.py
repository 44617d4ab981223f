"""Share models on the Hugging Face hub: a bundle and a card in a repository, ``hf:user/model``.

A model of the hub is a bundle as any other: safetensors and JSON, checked before anything is used,
never executed. The network is only used where that is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from cifnet_pl.model.bundle import CONFIG, LARGEST_CONFIG, tensors_name
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError
from cifnet_pl.utilities.files import rendered
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import one_line, printable

if TYPE_CHECKING:
    from cifnet_pl.model.classifier import Classifier

MAX_CARD_CLASSES = 200
"""Class names in a card; of more classes, the first ones."""

TEMPLATE = Path(__file__).parent / "templates" / "card.md"


def model_card(model: Classifier, repository: str) -> str:
    """Return the card: what the model knows, how it was made, and how to use it.

    Args:
        model: the model.
        repository: ``user/model``.
    """
    _, _, title = repository.partition("/")
    return rendered(
        TEMPLATE,
        model=model,
        images=model.backbone.takes_images,
        title=escaped(title),
        repository=repository,
        backbone=printable(model.backbone.name),
        head=type(model.head).__name__,
        learned=f"{sum(model.counts.values()):,}",
        elements=f"{sum(model.state_elements().values()):,}",
        names=[escaped(name) for name in model.class_names[:MAX_CARD_CLASSES]],
    )


def escaped(text: str) -> str:
    """Return a name as plain text of Markdown: no markup, no HTML, on one line."""
    return re.sub(r"([\\`*_{}\[\]()#+!|<>~&$-])", r"\\\1", printable(text))


SCHEME = "hf:"
CARD = "README.md"
OWN_FILES = re.compile(
    r"\.gitattributes|README\.md|config\.json|tensors-[0-9a-f]{16}\.safetensors"
)
"""Files of a repository that holds a bundle."""


class HubName(NamedTuple):
    """The name of a model on the hub.

    Attributes:
        repository: ``user/model``.
        revision: a branch, tag or commit; None for the newest.
    """

    repository: str
    revision: str | None = None

    @property
    def shown(self) -> str:
        """The name as a user writes it."""
        if self.revision is None:
            return f"{SCHEME}{self.repository}"
        return f"{SCHEME}{self.repository}@{self.revision}"

    @classmethod
    def parse(cls, text: str) -> HubName:
        """Parse ``hf:user/model`` or ``hf:user/model@revision``.

        Raises:
            UsageError: anything else.
        """
        found = re.fullmatch(
            r"hf:([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?", text, re.ASCII
        )
        if found is None or ".." in text:
            raise UsageError(
                f"'{printable(text)}' names no model of the hub, expected hf:user/model"
            )
        return cls(found[1], found[2])


def is_hub_name(place: str) -> bool:
    """Return whether ``place`` means a model of the hub."""
    return place.startswith(SCHEME)


def fetch(name: HubName, download: bool) -> Path:
    """Return the folder of a bundle of the hub.

    Args:
        name: of the model.
        download: whether what is not on this machine, or older than on the hub, may be fetched.

    Raises:
        UsageError: the package is missing.
        CheckpointError: there is no such model, or it cannot be fetched.
    """
    hub = optional("huggingface_hub", f"{SCHEME}{name.repository}", "hf")
    with _explained(name, "read"):
        if download:
            info = hub.HfApi().model_info(
                name.repository, revision=name.revision, files_metadata=True
            )
            sizes = {file.rfilename: file.size for file in info.siblings or []}
            _check_files(name, sizes)
        options = {"repo_id": name.repository, "local_files_only": not download}
        config = hub.hf_hub_download(filename=CONFIG, revision=name.revision, **options)
        folder = Path(config).parent
        # The folder is named by the commit, so that both files are of the same one.
        hub.hf_hub_download(
            filename=tensors_name(folder), revision=folder.name, **options
        )
        return folder


def push(
    model: Classifier, name: HubName, private: bool = False, overwrite: bool = False
) -> str:
    """Put a model on the hub, with a card, in one commit; returns its address.

    Args:
        model: the model.
        name: of its repository, which is made if it is missing.
        private: whether only its owner may see a repository that is made.
        overwrite: whether a model that is there may be replaced.

    Raises:
        UsageError: the package is missing, a revision is given, or the repository holds something
            else.
        CheckpointError: a class name that could not be read back.
        CifnetError: no right to write, or no network.
    """
    hub = optional("huggingface_hub", f"{SCHEME}{name.repository}", "hf")
    if name.revision is not None:
        raise UsageError(
            f"{name.shown} has a revision: push the model without one, as the newest"
        )
    with TemporaryDirectory() as made, _explained(name, "write"):
        folder = Path(made) / "bundle"
        model.save(folder)
        api = hub.HfApi()
        address = api.create_repo(name.repository, private=private, exist_ok=True)
        info = api.model_info(name.repository)
        existing = []
        for file in info.siblings or []:
            existing.append(file.rfilename)
        _refuse_existing(name, existing, overwrite)
        card = model_card(model, name.repository).encode()
        changes: list[Any] = [hub.CommitOperationAdd(CARD, card)]
        files = [path.name for path in folder.iterdir()]
        added = sorted(files)
        for file in added:
            changes.append(hub.CommitOperationAdd(file, str(folder / file)))
        for file in existing:
            if file.startswith("tensors-") and file not in added:
                changes.append(hub.CommitOperationDelete(file))
        message = f"{len(model.class_names)} classes"
        api.create_commit(
            name.repository, changes, commit_message=message, parent_commit=info.sha
        )
        return str(address)


def _check_files(name: HubName, sizes: dict[str, int | None]) -> None:
    """Raise CheckpointError unless the files of a repository (name → bytes) are of a bundle."""
    if CONFIG not in sizes or not any(file.startswith("tensors-") for file in sizes):
        first_files = [printable(file) for file in sorted(sizes)[:5]]
        files = ", ".join(first_files) or "nothing"
        raise CheckpointError(
            f"{name.shown} is no model of this package, it has {files}"
        )
    if (sizes[CONFIG] or 0) > LARGEST_CONFIG:
        raise CheckpointError(
            f"{name.shown} has a {CONFIG} of more than {LARGEST_CONFIG} bytes"
        )


def _refuse_existing(name: HubName, files: list[str], overwrite: bool) -> None:
    """Raise UsageError if a repository with ``files`` must not be written to."""
    unexpected = [file for file in files if not OWN_FILES.fullmatch(file)]
    others = sorted(unexpected)
    if others:
        other = printable(others[0])
        raise UsageError(
            f"{name.shown} holds other files ({other}): choose another name"
        )
    if CONFIG in files and not overwrite:
        raise UsageError(
            f"{name.shown} holds a model: choose another name, or add --overwrite true"
        )


@contextmanager
def _explained(name: HubName, what: str) -> Iterator[None]:
    """Turn the errors of the package into one sentence; ``what`` is "read" or "write"."""
    try:
        yield
    except CifnetError:
        raise
    except Exception as error:
        # The package huggingface_hub and its network packages raise many kinds.
        raise CheckpointError(_message(name, what, error)) from error


def _message(name: HubName, what: str, error: Exception) -> str:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "LocalEntryNotFoundError" in kinds:
        return (
            f"{name.shown} is not on this machine: allow the download with --download true, in"
            " Python download=True"
        )
    status = getattr(getattr(error, "response", None), "status_code", None)
    needs_login = "LocalTokenNotFoundError" in kinds
    refused = status in (401, 403, 404) or needs_login
    message = f"cannot {what} {name.shown}: {one_line(error)[:200]}"
    if refused:
        message += (
            "; check the name, or log in with `hf auth login` or HF_TOKEN, by a token that may"
            " write"
        )
    return message
