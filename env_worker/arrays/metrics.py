"""A worker's metrics for Prometheus. Needs the extra `metrics`, which only `--metrics` asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, cast

from env_worker.arrays.scrapes import ScrapeServer
from env_worker.listening import cannot_listen
from env_worker.setting import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

    from env_worker.arrays.stats import ArrayStats

_RUN_COUNTERS: Final = (
    ("replied", "runs_replied", "Runs whose reply was sent."),
    ("confirmed", "runs_confirmed", "Replies whose delivery was confirmed."),
    ("expired", "runs_expired", "Replies that count as delivered because their late-cancel window was over."),
    ("discarded", "runs_discarded", "Kept runs whose discard by the hook returned."),
    ("discard_failures", "runs_discard_failures", "Kept runs whose discard by the hook raised."),
)
_ARRAY_COUNTERS: Final = (
    ("kept_episodes", "Episodes that were kept, also those without arrays."),
    ("kept_bytes", "Bytes of kept arrays."),
    ("spilled_episodes", "Kept episodes that went to the spill folder, at least in part."),
    ("spilled_bytes", "Bytes of kept arrays that went to the spill folder."),
    ("failed_keeps", "Episodes of which nothing was kept: no room, a hole (strict), or the system."),
    ("refused_reservations", "Runs that were not admitted for want of room for their arrays."),
    ("fetches", "Fetches that were begun."),
    ("fetched_bytes", "Bytes of arrays that were sent."),
    ("mapped_bytes", "Bytes of arrays that callers of the same host were offered to map."),
    ("released_episodes", "Episodes whose last reference was released."),
    ("discarded_episodes", "Episodes whose arrays were discarded: they were not delivered."),
    ("expired_episodes", "Episodes whose arrays were freed because nobody fetched them within the lease."),
)
_ARRAY_GAUGES: Final = (
    ("held_episodes", "Episodes whose arrays are held."),
    ("reservations", "Runs that have room for their arrays reserved."),
    ("reserved_bytes", "Bytes that those runs are taken to need."),
    ("open_fetches", "Fetches that are under way."),
)


class Slots(Protocol):
    """Places for runs."""

    held: int
    waiting: int


class WorkerNumbers(Protocol):
    """What a `Runner` counts. Read from other threads."""

    draining: bool

    @property
    def slots(self) -> Slots: ...

    @property
    def counters(self) -> Mapping[str, int]: ...


class WorkerCollector:
    """Reads a worker's numbers when Prometheus asks for them. Called in threads of the metrics' server.

    Args:
        arrays: gives what each array store says of itself; the numbers are those of all together.
    """

    def __init__(
        self, instance: str, version: str, runs: WorkerNumbers, arrays: Callable[[], Sequence[ArrayStats]]
    ) -> None:
        self._labels: Final = {"worker": instance, "version": version}
        self._runs: Final = runs
        self._arrays: Final = arrays

    def collect(self) -> Iterator[Metric]:
        """The metrics. All names begin with `envtrio_`, those of arrays with `envtrio_arrays_`."""
        from prometheus_client.metrics_core import InfoMetricFamily

        yield InfoMetricFamily("envtrio_worker", "The worker process.", self._labels)
        yield from self._of_runs()
        yield from self._of_arrays()

    def _of_runs(self) -> Iterator[Metric]:
        slots = self._runs.slots
        yield _gauge("worker_draining", "1 from when the worker takes no new runs.", self._runs.draining)
        yield _gauge("runs_in_flight", "Runs that are carried.", slots.held)
        yield _gauge("runs_waiting", "Runs that wait for a place.", slots.waiting)
        for key, name, text in _RUN_COUNTERS:
            yield _counter(name, text, self._runs.counters.get(key, 0))

    def _of_arrays(self) -> Iterator[Metric]:
        stores = self._arrays()

        def total(name: str) -> int:
            return sum(getattr(stats, name) for stats in stores)

        for name, text in _ARRAY_COUNTERS:
            yield _counter(f"arrays_{name}", text, total(name))
        for name, text in _ARRAY_GAUGES:
            yield _gauge(f"arrays_{name}", text, total(name))
        media = ("memory", "spill")
        held = {medium: total(f"held_{medium}_bytes") for medium in media}
        limits = {medium: total(f"limit_{medium}_bytes") for medium in media}
        yield _gauge("arrays_held_bytes", "Bytes of arrays that are held.", held, "medium")
        yield _gauge("arrays_limit_bytes", "Bytes of arrays that may be held.", limits, "medium")
        age = max((stats.oldest_age_seconds for stats in stores), default=0.0)
        yield _gauge("arrays_oldest_age_seconds", "Age of the oldest arrays that are held.", age)
        holes: dict[str, int] = {}
        for stats in stores:
            for field, count in stats.incomplete_fields.items():
                holes[field] = holes.get(field, 0) + count
        yield _counter(
            "arrays_incomplete_fields", "Traces that were kept with a hole in that field.", holes, "field"
        )


class MetricsServer:
    """Answers Prometheus over HTTP, in a few threads of its own, from when it is made until `close`.

    Args:
        listen: HOST:PORT; port 0 picks a free one.

    SettingsError if the extra is not installed; ServerStartError if the address cannot be had. Making one may
    look up names: not for an event loop.
    """

    def __init__(self, listen: str) -> None:
        try:
            from prometheus_client import CollectorRegistry, make_wsgi_app
        except ImportError as error:
            raise SettingsError(
                f"--metrics is {listen}, but prometheus-client is not installed ({error}); "
                "pip install 'envtrio[metrics]', or leave it out"
            ) from error
        host, _, port = listen.rpartition(":")
        self._registry: Final = CollectorRegistry()
        try:
            self._server: Final = ScrapeServer(host.strip("[]"), int(port), make_wsgi_app(self._registry))
        except OSError as error:
            raise cannot_listen("--metrics", listen, error) from error
        self.address: Final = f"{host}:{self._server.server_port}"
        """HOST:PORT that is served."""

    def show(self, collector: WorkerCollector) -> None:
        """Answer with what it collects."""
        self._registry.register(cast("Collector", collector))

    def close(self) -> None:
        """Answer no more. Takes up to half a second: not for an event loop."""
        self._server.close()


def _counter(name: str, text: str, value: float | Mapping[str, float], label: str = "") -> Metric:
    from prometheus_client.metrics_core import CounterMetricFamily

    return _filled(CounterMetricFamily(f"envtrio_{name}", text, labels=[label] if label else ()), value)


def _gauge(name: str, text: str, value: float | Mapping[str, float], label: str = "") -> Metric:
    from prometheus_client.metrics_core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(f"envtrio_{name}", text, labels=[label] if label else ()), value)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, value: float | Mapping[str, float]) -> Metric:
    """`value` of each value of its label, or of all."""
    if isinstance(value, (int, float)):
        family.add_metric([], value)
    else:
        for labelled, one in value.items():
            family.add_metric([labelled], one)
    return family
