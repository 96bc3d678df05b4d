"""What a worker brings with it when it registers: the runs that it has, or whose replies it can take back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from envtrio.v1 import registry_service_pb2

from env_broker.route import RoutesFullError
from env_broker.status import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_broker.cancel import Canceller
    from env_broker.clock import Clock
    from env_broker.hello import Hello
    from env_broker.pool import Pool
    from env_broker.routes import RouteTable


class Adoption:
    """Takes in what workers report.

    Args:
        retry_seconds: after how long a worker that found the table full should come again.
        on_held: called with the session_id of each run that a worker reports.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        routes: RouteTable,
        canceller: Canceller,
        clock: Clock,
        retry_seconds: float,
        on_held: Callable[[str], None],
    ) -> None:
        self._pool: Final = pool
        self._routes: Final = routes
        self._canceller: Final = canceller
        self._clock: Final = clock
        self._retry_seconds: Final = retry_seconds
        self._on_held: Final = on_held

    def adopt(self, hello: Hello) -> None:
        """Learn where the worker's runs are, and send it the cancels that waited for them.

        Raises:
            Refusal: TABLE_FULL.
        """
        window = max(self._pool.late_cancel_seconds, hello.late_cancel_seconds)
        self._routes.returned(hello.instance)
        for run in hello.held_runs:
            replied = run.state == registry_service_pb2.HELD_RUN_STATE_REPLIED
            try:
                due = self._routes.adopt(
                    run.request_id,
                    run.session_id,
                    hello.instance,
                    self._clock.now(),
                    replied=replied,
                    window=window,
                )
            except RoutesFullError as error:
                raise Refusal("TABLE_FULL", str(error), retry_after=self._retry_seconds) from None
            self._on_held(run.session_id)
            if due:
                self._canceller.tell_worker(hello.instance, run.request_id, "remembered at the broker")
