"""The command `env-client release`: frees training arrays at the workers that keep them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

import grpc
from envtrio.v1 import training_array_service_pb2
from envtrio.v1.training_array_service_pb2 import ReleaseReferences, ReleaseRequest, ReleaseResponse

from env_client.channels import open_sync_channel
from env_client.errors import SHOWN_ID_DIGITS, EnvError, UnavailableError
from env_client.pool import name, printable, watch
from env_client.request import PROTOCOL_GENERATION
from env_client.statuses import env_error
from env_client.tally import format_bytes
from env_client.training_arrays.hosts import dial_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from env_client.reference_lines import FoundReferences

_SERVICE: Final = training_array_service_pb2.DESCRIPTOR.services_by_name["TrainingArrayService"]
_RELEASE_METHOD: Final = f"/{_SERVICE.full_name}/{_SERVICE.methods_by_name['Release'].name}"

_VIEW_SECONDS: Final = 10.0
_CALL_SECONDS: Final = 10.0
_CALLS_AT_ONCE: Final = 16
_KEYS_A_CALL: Final = 100_000
"""So many keys are 3.4 MB: far below what a message may have."""


@dataclass(frozen=True)
class Holder:
    """A worker that may hold arrays.

    Attributes:
        name: as messages name it.
        target: what is dialled.
        requests: what to free there, one call each.
        held_bytes: what it held by its last heartbeat; None where that is not known.
    """

    name: str
    target: str
    requests: tuple[ReleaseRequest, ...]
    held_bytes: int | None = None


@dataclass(frozen=True)
class Answer:
    """What a worker freed, and how it failed if it did."""

    holder: Holder
    freed: ReleaseResponse
    error: EnvError | None = None

    @property
    def is_failure(self) -> bool:
        """Whether something that was to be freed may still be held."""
        if self.error is None or self.error.code == "UNIMPLEMENTED":  # it serves no arrays
            return False
        return self.holder.held_bytes != 0

    def __str__(self) -> str:
        said = f"{self.holder.name}: {_freed(self.freed)}"
        if self.error is None:
            return said
        if self.error.code == "UNIMPLEMENTED":
            return f"{self.holder.name}: serves no arrays"
        if not self.is_failure:
            return f"{self.holder.name}: could not be asked, and held nothing by its last heartbeat"
        if self.freed.released or self.freed.not_found:
            return printable(f"{said}, then it failed: {self.error}{_next_step(self.error)}")
        held = self.holder.held_bytes
        holds = "" if held is None else f", and held {format_bytes(held)} by its last heartbeat"
        return printable(
            f"{self.holder.name}: could not be asked{holds}: {self.error}{_next_step(self.error)}"
        )


def holders_of_owner(target: str, owner: str) -> list[Holder]:
    """Every worker of the pool whose broker is at `target`, or the lone worker there.

    Those that drain, that the broker cannot reach or that it has lost are among them: they may still answer.

    Raises:
        EnvError: the broker could not be asked.
    """
    request = ReleaseRequest(protocol_generation=PROTOCOL_GENERATION, owner=owner)
    with open_sync_channel(target, None) as channel:
        call = watch(channel, timeout=_VIEW_SECONDS)
        try:
            view = next(call)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                return [Holder(f"worker at {target}", target, (request,))]
            raise env_error(error) from error
        except StopIteration:
            raise UnavailableError(f"{target} ended before it showed its pool") from None
        finally:
            call.cancel()
    holders: dict[str, Holder] = {}
    for worker in view.workers:  # those that were lost last: another may have their address by now
        if worker.address:
            dialled = dial_target(worker.address)
            holder = Holder(name(worker), dialled, (request,), worker.held_array_bytes)
            holders.setdefault(worker.address, holder)
    return list(holders.values())


def holders_of_references(found: FoundReferences) -> list[Holder]:
    """Every worker that a reference names."""
    return [
        Holder(
            f"worker {printable(instance[:SHOWN_ID_DIGITS])} at {printable(address)}",
            dial_target(address),
            tuple(_by_reference(instance, sorted(keys))),
        )
        for (instance, address), keys in found.keys.items()
    ]


def release(holders: Sequence[Holder], out: TextIO, report: TextIO) -> bool:
    """Ask all of them, and say what each has freed, then the total.

    Args:
        holders: whom to ask, several at once.
        out: gets what was freed.
        report: gets a line for each that failed.

    Returns:
        Whether nothing that was to be freed is left.
    """
    threads = ThreadPoolExecutor(_CALLS_AT_ONCE)
    answers = []
    try:
        for answer in threads.map(_ask, holders):
            answers.append(answer)
            if answer.is_failure:
                print(f"env-client: {answer}", file=report, flush=True)
            else:
                print(answer, file=out, flush=True)
    finally:
        threads.shutdown(cancel_futures=True)
    total = ReleaseResponse()
    for answer in answers:
        _add(total, answer.freed)
    failed = sum(answer.is_failure for answer in answers)
    workers = f"{len(holders)} worker{'' if len(holders) == 1 else 's'}"
    print(f"total of {workers}, {failed} of which failed: {_freed(total)}", file=out, flush=True)
    return not failed


def _ask(holder: Holder) -> Answer:
    freed = ReleaseResponse()
    with open_sync_channel(holder.target, None) as channel:
        method = channel.unary_unary(
            _RELEASE_METHOD,
            request_serializer=ReleaseRequest.SerializeToString,
            response_deserializer=ReleaseResponse.FromString,
        )
        for request in holder.requests:
            try:
                _add(freed, method(request, timeout=_CALL_SECONDS))
            except grpc.RpcError as error:
                return Answer(holder, freed, env_error(error))
    return Answer(holder, freed)


def _by_reference(instance: str, keys: Sequence[str]) -> Iterator[ReleaseRequest]:
    for start in range(0, len(keys), _KEYS_A_CALL):
        references = ReleaseReferences(instance=instance, keys=keys[start : start + _KEYS_A_CALL])
        yield ReleaseRequest(protocol_generation=PROTOCOL_GENERATION, references=references)


def _add(total: ReleaseResponse, part: ReleaseResponse) -> None:
    total.released += part.released
    total.not_found += part.not_found
    total.released_bytes += part.released_bytes


def _freed(freed: ReleaseResponse) -> str:
    missing = f"; {freed.not_found} were not there" if freed.not_found else ""
    count = f"{freed.released} reference{'' if freed.released == 1 else 's'}"
    return f"released {count}, {format_bytes(freed.released_bytes)}{missing}"


def _next_step(error: EnvError) -> str:
    if error.code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
        return ""
    return "; try again from where its address can be reached; if its process is gone, so are its arrays"
