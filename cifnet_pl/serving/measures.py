"""Count requests and times in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Scope

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60)
BATCHES = (1, 2, 4, 8, 16, 32, 64)


class Measures:
    """The numbers of ``/metrics``. They belong to this object, so that one process can hold several services."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter("cifnet_requests", "Requests answered", ["path", "method", "status"], registry=registry)
        self.seconds = Histogram(
            "cifnet_request_seconds", "Time to answer", ["path"], buckets=SECONDS, registry=registry
        )
        self.batches = Histogram("cifnet_batch_photos", "Photos embedded together", buckets=BATCHES, registry=registry)
        self.classified = Counter("cifnet_photos_classified", "Photos answered", registry=registry)
        self.unknown = Counter("cifnet_photos_unknown", "Photos answered with 'none of these'", registry=registry)
        self.unreadable = Counter("cifnet_photos_unreadable", "Photos that could not be decoded", registry=registry)
        self.learned = Counter("cifnet_photos_learned", "Photos learned", registry=registry)

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Add a number that is computed when it is read.

        Args:
            name: of the metric.
            about: its description.
            value: returns the number.
        """
        Gauge(name, about, registry=self.registry).set_function(value)

    def request(self, scope: Scope, status: int, seconds: float) -> None:
        """Count one request by the template of its path; paths that clients make up would fill the memory.

        Args:
            scope: of the request.
            status: HTTP status of the answer.
            seconds: that it took.
        """
        route = scope.get("route")
        path = getattr(route, "path", None) or "other"
        method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "other"
        self.requests.labels(path, method, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Return everything, in the text format."""
        return generate_latest(self.registry)
