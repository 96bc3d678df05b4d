"""Workers join and leave: leases, heartbeats, and the runs that are given up with a lost worker."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from envtrio.v1 import registry_service_pb2
from envtrio.v1.registry_service_pb2_grpc import RegistryServiceServicer
from google.protobuf.message import DecodeError

from env_broker.adoption import Adoption
from env_broker.clock import Clock, within
from env_broker.given_up import GivenUp
from env_broker.heartbeat import Heartbeat, check_heartbeat
from env_broker.hello import Hello, check_hello
from env_broker.link import WorkerLink
from env_broker.pool import PoolFullError
from env_broker.registration import Registration
from env_broker.session_names import SessionNames
from env_broker.status import Refusal, short
from env_broker.tasks import first_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from envtrio.v1.registry_service_pb2 import RegisterRequest, RegisterResponse
    from grpc.aio import ServicerContext

    from env_broker.cancel import Canceller
    from env_broker.dial_back import DialBack
    from env_broker.pool import Pool, Worker
    from env_broker.routes import RouteTable
    from env_broker.tasks import Errands

    Context = ServicerContext[RegisterRequest, RegisterResponse]

log = logging.getLogger(__name__)

_STOPPED: Final = "it has stopped"
_REGISTER_AGAIN: Final = "; register again"
"""For the worker, and not for people."""
_BROKE: Final = "its stream broke"


class Registry(RegistryServiceServicer):
    """RegistryService: the pool's door.

    Args:
        links: instance -> link of every registered worker; changed here only.
        dial_back: finds out whether those that register can be reached.
        on_change: called after the pool has changed.
        on_local: called with claim and instance of a worker that says that it is one of the broker's own; its
            slot, or empty where it is not.
        on_draining: called with the instance of a worker that drains by itself.
        on_lost: called with the link of a worker that left without a goodbye, and the cause.
        on_held: called with the session_id of each run that a worker reports.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        routes: RouteTable,
        links: dict[str, WorkerLink],
        canceller: Canceller,
        dial_back: DialBack,
        errands: Errands,
        clock: Clock,
        instance: str,
        heartbeat_seconds: float,
        lease_seconds: float,
        on_change: Callable[[], None],
        on_local: Callable[[str, str], str],
        on_draining: Callable[[str], None],
        on_lost: Callable[[WorkerLink, str], None],
        on_held: Callable[[str], None],
    ) -> None:
        self._pool: Final = pool
        self._routes: Final = routes
        self._links: Final = links
        self._dial_back: Final = dial_back
        self._errands: Final = errands
        self._clock: Final = clock
        self._instance: Final = instance
        self._heartbeat_seconds: Final = heartbeat_seconds
        self._lease_seconds: Final = lease_seconds
        self._on_change: Final = on_change
        self._on_local: Final = on_local
        self._on_draining: Final = on_draining
        self._on_lost: Final = on_lost
        self._registrations: dict[str, Registration] = {}
        self._given_up: Final = GivenUp()
        self._lane_names: Final = SessionNames()
        self._adoption: Final = Adoption(
            pool=pool,
            routes=routes,
            canceller=canceller,
            clock=clock,
            retry_seconds=lease_seconds,
            on_held=on_held,
        )

    async def Register(  # type: ignore[override]  # the stubs do not know grpc.aio's reader-writer API
        self, request_iterator: AsyncIterator[RegisterRequest], context: Context
    ) -> None:
        """As in registry_service.proto."""
        try:
            await self._serve(context)
        except Refusal as refusal:
            await refusal.abort(context)

    def close(self, refusal: Refusal) -> None:
        """End every lease with `refusal`: the broker stops."""
        for registration in tuple(self._registrations.values()):
            registration.end(refusal)

    def drain(self, instance: str, cause: str) -> bool:
        """Give the worker no more runs, and tell it to drain and stop. False where it is not registered."""
        registration = self._registrations.get(instance)
        if registration is None or not self._pool.drain(instance):
            return False
        registration.order_drain(cause)
        return True

    def drains(self, instance: str) -> None:
        """The worker says that it drains, by a heartbeat or by declining a run: it gets no more of them, and
        a local one is being replaced when this returns."""
        link = self._links.get(instance)
        if link is not None and not link.worker.draining:
            self._pool.drain(instance)
            self._on_draining(instance)
            self._on_change()

    def ended(self, instance: str, how: str) -> None:
        """Its process has ended, although its stream may seem open: what it forked holds copies of the
        connection. Means nothing where it is not registered."""
        link = self._links.get(instance)
        if link is not None:
            self._pool.remove(instance, link.worker.lease)
            self._drop(link.worker, how)
        self._given_up.forget(instance)

    def reached(self, link: WorkerLink) -> None:
        """The worker answers at its address: whatever else registered with it is gone."""
        for worker in self._pool.displace(link.worker.instance):
            self._drop(worker, f"worker {short(link.worker.instance)} answers at its address now")

    async def _serve(self, context: Context) -> None:
        try:
            first = await within(self._clock, self._lease_seconds, _read(context))
        except TimeoutError:
            first = None
        if first is None or first.WhichOneof("frame") != "hello":
            raise Refusal("INVALID_REQUEST", "the first frame must be hello; send it at once", field="hello")
        hello = check_hello(first.hello)
        registration = Registration(uuid.uuid4().hex, context)
        cause = _BROKE
        try:
            worker = self._add(hello, registration)
            self._adoption.adopt(hello)
            await registration.send(self._registered(hello.instance, registration.lease))
            self._on_change()
            await first_of(
                self._frames(context, worker, registration), self._expiry(worker), registration.over()
            )
            cause = _STOPPED
        except Refusal as refusal:
            cause = refusal.message.removesuffix(_REGISTER_AGAIN)
            raise
        finally:
            if self._registrations.get(hello.instance) is registration:
                left = self._pool.remove(hello.instance, registration.lease)
                assert left is not None
                self._drop(left, cause)

    def _add(self, hello: Hello, registration: Registration) -> Worker:
        names = [environment.name for environment in hello.environments]
        known = self._links.get(hello.instance)
        if known is not None and known.address != hello.address:
            # Its runs' streams are where it was.
            self._pool.remove(hello.instance, known.worker.lease)
            self._drop(known.worker, f"it moved to {hello.address}")
        try:
            worker = self._pool.add(
                hello.instance,
                registration.lease,
                hello.address,
                names,
                hello.slots,
                hello.late_cancel_seconds,
                self._clock.now(),
            )
        except PoolFullError as error:
            raise Refusal("TABLE_FULL", str(error), retry_after=self._lease_seconds) from None
        if (older := self._registrations.get(hello.instance)) is not None:
            older.end(Refusal("LEASE_EXPIRED", f"worker {short(hello.instance)} has registered again"))
        self._registrations[hello.instance] = registration
        link = self._links.get(hello.instance)
        if link is None:
            link = self._links[hello.instance] = WorkerLink(worker, lane_names=self._lane_names)
            self._dial_back.watch(link)
        else:
            self._dial_back.verify(link)
        link.descriptions = hello.environments
        self._routes.window = max(self._routes.window, hello.late_cancel_seconds)
        link.local_slot = self._on_local(hello.local_slot, hello.instance) if hello.local_slot else ""
        log.info("worker=%s registered slots=%d environments=%s", link.name, hello.slots, ",".join(names))
        return worker

    def _registered(self, instance: str, lease: str) -> RegisterResponse:
        return registry_service_pb2.RegisterResponse(
            registered=registry_service_pb2.Registered(
                lease=lease,
                heartbeat_seconds=self._heartbeat_seconds,
                lease_seconds=self._lease_seconds,
                given_up=self._given_up.of(instance),
                broker_instance=self._instance,
            )
        )

    async def _frames(self, context: Context, worker: Worker, registration: Registration) -> None:
        """Answer frames until the worker ends its side, and has been heard out."""
        while (frame := await _read(context)) is not None:
            kind = frame.WhichOneof("frame")
            if kind == "heartbeat":
                self._beat(check_heartbeat(frame.heartbeat), worker, registration)
                await registration.acknowledge(frame.heartbeat.seq, worker.unreachable_because)
            elif kind == "given_up_ack":
                self._given_up.acknowledge(worker.instance, frame.given_up_ack.request_ids)
            elif kind == "hello":
                raise Refusal(
                    "INVALID_REQUEST", "hello came twice; register again on a new stream", field="hello"
                )
            # Another kind is a later version's, and no sign of life.
        if worker.draining and (link := self._links.get(worker.instance)) is not None:
            await link.heard_out()

    def _beat(self, beat: Heartbeat, worker: Worker, registration: Registration) -> None:
        if not self._pool.heartbeat(
            worker.instance,
            registration.lease,
            self._clock.now(),
            load=beat.load,
            environments=[environment.name for environment in beat.environments] or None,
            says=beat.says,
        ):
            raise Refusal("LEASE_EXPIRED", f"lease {short(registration.lease)} is over{_REGISTER_AGAIN}")
        if beat.environments:
            self._links[worker.instance].descriptions = beat.environments
        instance, pool = worker.instance, self._pool
        changed = pool.no_room(instance, beat.says) if beat.full else pool.relent(instance)
        if changed or beat.environments:
            self._on_change()
        if beat.draining:
            self.drains(worker.instance)

    async def _expiry(self, worker: Worker) -> None:
        """Raises LEASE_EXPIRED once no heartbeat has come for too long."""
        while (left := worker.lease_ends - self._clock.now()) > 0:
            await self._clock.sleep(left)
            if self._clock.now() > worker.lease_ends + self._heartbeat_seconds:
                # It was this broker that stood still: hear first what has come meanwhile.
                await self._clock.sleep(self._heartbeat_seconds)
        limit = f"{self._lease_seconds:g} s"
        raise Refusal("LEASE_EXPIRED", f"no heartbeat came for {limit}{_REGISTER_AGAIN}", limit=limit)

    def _drop(self, worker: Worker, cause: str) -> None:
        """The worker has left the pool: its runs are given up, and their callers hear of it."""
        registration = self._registrations.pop(worker.instance, None)
        if registration is not None:
            registration.end(Refusal("LEASE_EXPIRED", f"worker {short(worker.instance)} left: {cause}"))
        given_up = self._routes.lose(worker.instance, self._clock.now())
        self._given_up.add(worker.instance, given_up)
        link = self._links.pop(worker.instance)
        link.lose()
        if cause == _STOPPED and (given_up or not worker.draining):
            cause = _BROKE  # at times gRPC shows a stream that broke as one whose other side has ended
        if cause != _STOPPED:
            self._on_lost(link, cause)
        self._errands.start(link.close(), f"close {link.name}")
        level = logging.INFO if cause == _STOPPED else logging.WARNING
        log.log(level, "worker=%s left, runs given up=%d, reason=%s", link.name, len(given_up), cause)
        self._on_change()


async def _read(context: Context) -> RegisterRequest | None:
    """The next frame; None at the end. Refusal if it cannot be decoded."""
    try:
        frame: Any = await context.read()
    except DecodeError as error:
        raise Refusal(
            "INVALID_REQUEST",
            f"a frame is no RegisterRequest ({error}); use the stubs of envtrio.v1",
            field="frame",
        ) from None
    return frame if isinstance(frame, registry_service_pb2.RegisterRequest) else None
