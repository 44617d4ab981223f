"""What a service no longer needs is not held: models of earlier versions."""

import gc
import weakref
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from cifnet_pl.serving.service import Job, Service
from cifnet_pl.serving.workspace import Workspace
from tests.serving.services import becomes, image, model


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    begun = model()
    made = Service(Workspace(tmp_path / "w", begun), begun)
    yield made
    made.close()


def taught(service: Service) -> Job:
    arrived = service.inbox.receive(
        [(f"{i}.png", BytesIO(image("blue", i))) for i in range(3)]
    ).images
    return service.submit(service.learn, dict.fromkeys(arrived, "blue"))


def test_models_of_earlier_versions(service, caplog):
    """After answers, and after a refused update, whose error is remembered, the next version
    replaces the model.
    """
    caplog.set_level(
        "ERROR", "cifnet_pl.serving"
    )  # pytest keeps what is logged, here an error with its traceback
    taught(service).end.result(60)
    service.answering.submit(image("red", 50)).result(60)
    unknown = service.submit(service.forget, "x")
    unknown.end.result(60)
    assert "unknown class 'x'" in (unknown.error or "")
    replaced = weakref.ref(service.answering.served.model)
    service.submit(service.rename, "blue", "azure").end.result(60)
    assert becomes(lambda: gc.collect() >= 0 and replaced() is None)
