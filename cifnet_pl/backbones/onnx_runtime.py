"""Import ONNX Runtime without its telemetry."""

from __future__ import annotations

import os
from typing import Any

TELEMETRY_OFF = "ORT_DISABLE_TELEMETRY"
"""Environment variable that ONNX Runtime reads when it is imported."""


def import_onnxruntime() -> Any:
    """Import ONNX Runtime, which would otherwise note facts about the machine in the user's cache folder and send them.

    Its official builds do so unless ``ORT_DISABLE_TELEMETRY`` is set. A value that the user has given it stays.

    Returns:
        The module.

    Raises:
        ImportError: it is not installed.
    """
    os.environ.setdefault(TELEMETRY_OFF, "1")
    import onnxruntime

    return onnxruntime
