"""Replace errors of torch and the system that a user can put right by one sentence of this package."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from cifnet_pl.utilities.errors import CifnetError

LOST = "another process of this run ended: its own message says why"
KILLED = (
    "a process that decodes photos was killed, as systems do when memory is short: "
    "use fewer --data.num_workers or a smaller --data.batch_size; --ckpt_path last goes on"
)
SIGNS = {
    "closed by peer": LOST,
    "reset by peer": LOST,
    "Broken pipe": LOST,
    "remote process exited": LOST,
    "is killed by signal": KILLED,
    "exited unexpectedly": KILLED,
}
"""Part of a RuntimeError's message → what to say instead."""

WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)


@contextmanager
def explained() -> Iterator[None]:
    """Within the block, replace errors about lost processes and files that cannot be written by a CifnetError."""
    try:
        yield
    except RuntimeError as error:
        explanation = next((sentence for sign, sentence in SIGNS.items() if sign in str(error)), None)
        if explanation is None:
            raise
        raise CifnetError(explanation) from error
    except OSError as error:
        if error.errno not in WRITING:
            raise
        raise CifnetError(
            f"cannot write {error.filename or 'into the folder of the run'}: {error.strerror}; "
            "put that right, then the same command with --ckpt_path last goes on"
        ) from error
