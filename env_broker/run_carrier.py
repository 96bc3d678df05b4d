"""A client's run from its request to its end, whichever way it came: counted, logged, carried."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from env_broker.client_hop import HopBrokenError
from env_broker.counters import CANCELLED, FAILED, REPLIED, RUNS, outcome_of
from env_broker.status import Refusal, error_reason
from env_broker.worker_cancel import PassedOn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from env_broker.counters import Counters
    from env_broker.held_request import HeldRequest
    from env_broker.relay import ClientHop, Relay

log = logging.getLogger(__name__)


class RunCarrier:
    """What Run and a run in a session have in common, so that they cannot differ.

    Args:
        expect: called with the session that a run names, before it is carried.
    """

    def __init__(self, *, relay: Relay, counters: Counters, expect: Callable[[str], object]) -> None:
        self._relay: Final = relay
        self._counters: Final = counters
        self._expect: Final = expect

    def left_at_once(self) -> None:
        """A run ended before `carry` began: it came all the same."""
        self._counters.add(RUNS)
        self._counters.add(CANCELLED)

    async def carry(
        self, read: Callable[[], Awaitable[HeldRequest]], hop: ClientHop
    ) -> Refusal | PassedOn | None:
        """The status with which the run ends; None: OK.

        Args:
            read: gives the request, or raises the Refusal of one that is none.

        Raises:
            HopBrokenError: nobody is there to hear of it, and the worker was told.
        """
        self._counters.add(RUNS)
        outcome = FAILED
        try:
            request = await read()
            self._expect(request.session_id)
            await self._relay.carry(request, hop)
            outcome = REPLIED
        except Refusal as refusal:
            outcome = outcome_of(refusal.reason)
            log.info("reason=%s %s", refusal.reason, refusal.brief)
            return refusal
        except PassedOn as status:
            outcome = outcome_of(error_reason(tuple(status.error.trailing_metadata() or ())))
            return status
        except HopBrokenError as error:
            outcome = CANCELLED
            log.info("reason=CALLER_LOST %s", error)
            raise
        except asyncio.CancelledError:
            outcome = CANCELLED
            raise
        except Exception as error:
            log.exception("reason=INTERNAL a fault of the broker itself")
            return Refusal("INTERNAL", f"{type(error).__name__}: {error}; report it with the broker's log")
        finally:
            self._counters.add(outcome)
        return None
