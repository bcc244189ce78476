"""What a server counts, in Prometheus' format."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from hoptimizer.serving.admission import Admission

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counts of one server.

    Args:
        what: is asked: ``question`` or ``search``.
        admission: whose requests are shown as in flight and as waiting.
    """

    def __init__(self, what: str, admission: Admission) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "hop_requests", "Requests by route and status.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            f"hop_{what}_seconds", f"Seconds of a {what}.", buckets=_SECONDS, registry=self._registry
        )
        self._failures = Counter(
            "hop_failures", "Requests without an answer, by reason.", ["reason"], registry=self._registry
        )
        self._calls = Counter("hop_lm_calls", "Calls of language models.", registry=self._registry)
        self._tokens = Counter("hop_lm_tokens", "Tokens of those calls.", ["kind"], registry=self._registry)
        for name, about, value in (
            ("hop_in_flight", "Requests that are worked on.", lambda: admission.working),
            ("hop_waiting", "Requests that wait.", lambda: admission.waiting),
        ):
            Gauge(name, about, registry=self._registry).set_function(value)

    def request(self, route: str, status: int) -> None:
        """A request has ended with a status."""
        self._requests.labels(route, str(status)).inc()

    def answered(self, seconds: float, counts: Mapping[str, float]) -> None:
        """An answer was given.

        Args:
            seconds: that it took.
            counts: of its steps, as :func:`hoptimizer.programs.record.counts` gives them.
        """
        self._seconds.observe(seconds)
        self._calls.inc(counts.get("lm_calls", 0))
        for kind in ("prompt", "completion"):
            self._tokens.labels(kind).inc(counts.get(f"{kind}_tokens", 0))

    def failed(self, reason: str) -> None:
        """A request got no answer."""
        self._failures.labels(reason).inc()

    def text(self) -> bytes:
        """What a Prometheus server reads."""
        return generate_latest(self._registry)
