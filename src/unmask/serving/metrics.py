"""Metrics for Prometheus at /metrics, over all worker processes."""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # a folder through which worker processes add up their metrics
SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
WORKS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics under their Prometheus names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        self.requests = Counter("unmask_requests", "Requests answered.", ["route", "status"], registry=own)
        self.seconds = Histogram(
            "unmask_request_seconds", "Time to answer.", ["route"], registry=own, buckets=SECONDS
        )
        self.tokens = Counter("unmask_tokens", "Tokens drawn.", registry=own)
        self.ticks = Histogram("unmask_tick_seconds", "Time of one network call.", registry=own, buckets=SECONDS)
        self.works = Histogram("unmask_tick_requests", "Requests in one call.", registry=own, buckets=WORKS)
        self.positions = Counter("unmask_positions", "Positions of joint calls.", registry=own)
        self.padded = Counter("unmask_padded_positions", "Padding among them.", registry=own)
        self.live = Gauge("unmask_live_requests", "Requests being filled.", registry=own, multiprocess_mode="livesum")
        self.waiting = Gauge(
            "unmask_waiting_requests", "Requests waiting.", registry=own, multiprocess_mode="livesum"
        )
        self.recent = 1.0  # seconds per request, a running mean

    def tick(self, *, seconds: float, works: int) -> None:
        self.ticks.observe(seconds)
        self.works.observe(works)

    def passed(self, positions: int, padded: int) -> None:
        self.positions.inc(positions)
        self.padded.inc(padded)

    def answered(self, route: str, status: int, seconds: float) -> None:
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)
        if status == 200 and route in ("/v1/completions", "/v1/infill", "/v1/score", "/v1/classify"):
            self.recent += 0.1 * (seconds - self.recent)

    def text(self) -> bytes:
        """All metrics, in Prometheus's format."""
        if not os.environ.get(SHARED):
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return generate_latest(registry)


def forget_process(folder: str, pid: int) -> None:
    """Remove the gauges of a worker process that has ended, however it did."""
    mark_process_dead(pid, folder)
