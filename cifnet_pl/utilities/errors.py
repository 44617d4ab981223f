"""The package's errors.

Whatever a user can correct raises a :class:`CifnetError`. Its sentence names what was given, what
was expected and what to do. The command line prints it and exits with ``error.exit_code``. Any
other exception is a fault of the package and keeps its traceback.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, get_args

from cifnet_pl.utilities.text import listed, one_line, printable, shown

if TYPE_CHECKING:
    from torch import Tensor


class CifnetError(Exception):
    """Base of all errors that this package raises on purpose (exit code 1: the run failed)."""

    exit_code = 1
    title = "error: "


class UsageError(CifnetError):
    """Wrong usage: unknown name, impossible option (exit code 2)."""

    exit_code = 2


class AlreadyThere(CifnetError):
    """What a repeated command would write is there already (exit code 0: nothing is to be done)."""

    exit_code = 0
    title = ""


class DataError(CifnetError):
    """Data on disk is missing, unreadable or of another form than expected."""


class CheckpointError(CifnetError):
    """A checkpoint is truncated, of another version, or of another backbone, head or buffer."""


class UnsupportedError(CifnetError):
    """This head does not have the capability; the sentence says why."""


class NonFiniteError(CifnetError):
    """Embeddings hold NaN or Inf; no statistic was changed."""


REFUSALS = (
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.ESTALE,
    errno.EMFILE,
    errno.ENFILE,
)
"""Errors of the system that are no fault of the package, whatever it was doing."""


def refusal(error: OSError) -> str | None:
    """Return a sentence about a file that the system refuses; None for other errors.

    Example:
        >>> refusal(PermissionError(errno.EACCES, "Permission denied", "model/config.json"))
        'cannot use model/config.json: Permission denied; give this account access to it'
    """
    if error.errno not in REFUSALS:
        return None
    if error.filename is None:
        return f"cannot write a file: {error.strerror}"
    sentence = f"cannot use {printable(str(error.filename))}: {error.strerror}"
    if isinstance(error, PermissionError):
        sentence += "; give this account access to it"
    return sentence


def no_images(name: str) -> DataError:
    """Return the error of a class of which no image was learned."""
    return DataError(
        f"no image of class '{name}' was learned: none could be read, or trainer options limit the"
        " batches"
    )


@contextmanager
def explained(
    kind: type[CifnetError],
    failed: str,
    *errors: type[Exception],
    end: str = "",
    reason: Callable[[Exception], str] = one_line,
    own: bool = False,
) -> Iterator[None]:
    """Within the block, replace errors of other packages by one of this package.

    Args:
        kind: of the new error, whose sentence is what ``failed``, a colon, and the reason.
        failed: what could not be done, such as "cannot read images.zip"; "" for the reason alone.
        errors: kinds that are replaced; none for all, as parsers of damaged files and the code of
            others fail in many ways.
        end: of the sentence, such as "; make it again".
        reason: gives the words of an error; its own by default.
        own: whether errors of this package are replaced, too.
    """
    replaced = errors or (Exception,)
    try:
        yield
    except replaced as error:
        if isinstance(error, CifnetError) and not own:
            raise
        sentence = printable(reason(error)) + end
        if failed:
            sentence = f"{failed}: {sentence}"
        raise kind(sentence) from error


@contextmanager
def prefixed(start: str) -> Iterator[None]:
    """Within the block, prefix the sentences of this package's errors.

    Args:
        start: it is followed by a colon.
    """
    try:
        yield
    except CifnetError as error:
        error.args = (f"{start}: {error}",)
        raise


def first_mistake(error: Any) -> str:
    """Return what is wrong with a record: the place, its value, and pydantic's sentence.

    Args:
        error: pydantic's ``ValidationError``, or FastAPI's of a request.
    """
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"])) or "content"
    return f"{printable(place[:100])} is {shown(first['input'])}: {first['msg']}"


def unknown_name(kind: str, unknown: str, known: Iterable[str]) -> UsageError:
    """Return an error for an unknown name that lists the nearest known ones.

    Args:
        kind: what was named ("head", "backbone", …).
        unknown: the unknown name.
        known: all known names.

    Example:
        >>> print(unknown_name("head", "Ridge", ["RidgeHead", "NCMHead"]))
        unknown head 'Ridge': did you mean RidgeHead?
    """
    names = sorted(known)
    hint = did_you_mean(unknown, names) or f"known are: {listed(names, 20)}"
    return UsageError(f"unknown {kind} '{unknown}': {hint}")


def did_you_mean(unknown: str, known: Iterable[str], likeness: float = 0.5) -> str:
    """Return a question with the known names that hold or resemble an unknown one; "" for none.

    A known name holds it if it contains what follows the last dot of the unknown one.

    Args:
        unknown: the unknown name.
        known: all known names.
        likeness: of the spellings, from 0 to 1, that is needed.

    Example:
        >>> did_you_mean("--root", ["--data.root", "--logs"])
        'did you mean --data.root?'
        >>> did_you_mean("--model.engine", ["--engine", "--logs"])
        'did you mean --engine?'
    """
    names = sorted(known)
    part = unknown.lstrip("-").lower().rpartition(".")[2]
    near = []
    if len(part) > 2:
        near = [name for name in names if part in name.lower()]
        near.sort(key=len)
    near = near or difflib.get_close_matches(unknown, names, cutoff=likeness)
    if not near:
        return ""
    return f"did you mean {' or '.join(near[:3])}?"


def check_choice(kind: str, value: str, choices: object) -> None:
    """Check that an argument has one of its allowed values.

    Args:
        kind: what the argument is called in the message.
        value: the value.
        choices: a ``Literal`` type.

    Raises:
        UsageError: ``value`` is none of the ``choices``.
    """
    if value not in get_args(choices):
        raise unknown_name(kind, str(value), get_args(choices))


def check_that(fits: bool, option: str, value: object, expected: str) -> None:
    """Check the value of an option.

    Args:
        fits: whether it is one that is expected.
        option: name of the option.
        value: that was given.
        expected: what the value should be, in words.

    Raises:
        UsageError: ``OPTION is VALUE, expected …``, unless it ``fits``.
    """
    if not fits:
        given = f"{value:g}" if isinstance(value, float) else value
        raise UsageError(f"{option} is {given}, expected {expected}")


def check_count(option: str, value: int) -> None:
    """Check an option that is a number of things: UsageError unless it is at least 1."""
    check_that(value >= 1, option, value, "at least 1")


def check_positive(option: str, value: float) -> None:
    """Check an option that is a number: UsageError unless it is positive and finite."""
    check_that(0 < value < float("inf"), option, value, "a positive number")


def check_embeddings(
    z: Tensor,
    width: int,
    name: Callable[[int], str] | None = None,
) -> None:
    """Check that ``z`` is a finite floating-point matrix; this waits for the device computing it.

    Args:
        z: embeddings.
        width: number of columns that it must have.
        name: row → what an error calls the image of that row.

    Raises:
        CifnetError: wrong number of dimensions, width or dtype.
        NonFiniteError: NaN or Inf.
    """
    import torch  # not above: it takes seconds, which help and errors in options need not wait

    if z.ndim != 2 or z.shape[1] != width:
        raise CifnetError(
            f"embeddings have shape {tuple(z.shape)}, expected (n, {width}): use this head's"
            " backbone"
        )
    if not z.is_floating_point():
        raise CifnetError(f"embeddings have dtype {z.dtype}, expected floating point")
    # The extremes of a batch are NaN where one of its numbers is, and are found sooner than every
    # number is checked.
    if z.numel() and not torch.isfinite(torch.stack(z.aminmax())).all():
        is_finite = torch.isfinite(z).all(dim=1)
        rows = (~is_finite).nonzero().flatten().tolist()
        found = (
            f"{len(rows)} of {len(z)} embeddings hold NaN or Inf (first row: {rows[0]})"
        )
        if name is not None:
            found = f"{name(rows[0])}: {found}"
        raise NonFiniteError(found)


def explaining_full_memory(batch_size: int) -> AbstractContextManager[None]:
    """Return a context that says what to do if the GPU's memory is full.

    Args:
        batch_size: of the images.
    """
    import torch  # not above, as in check_embeddings

    return explained(
        CifnetError,
        "the GPU's memory is full",
        torch.cuda.OutOfMemoryError,
        end=f"; set a smaller --data.batch_size (now {batch_size})",
    )
