"""A trainer that fetches a branch's heads and masks from the worker, and checks them against its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from env_client import ArrayClient, array_references, arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envtrio.v1.episode_pb2 import Trace
    from numpy.typing import NDArray

    Fetched = Mapping[str, NDArray[Any]]

FIELDS = ("top_logprobs", "sampling_mask")


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch as it came with the episode: sampled ids int32 and their log-probabilities float32, both
    `[sampled]`, and the reference to its arrays."""

    reference: dict[str, Any]
    sampled: NDArray[np.int32]
    logprobs: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class Checked:
    """Of a branch that was fetched: how many ids were kept of each sampled token, int32 `[sampled]`, and what
    is wrong with it."""

    branch: Branch
    kept: NDArray[np.int32]
    faults: tuple[str, ...]


def branches(trace: Trace) -> list[Branch]:
    """The branches of a trace whose worker has kept arrays."""
    return [
        Branch(
            reference,
            arrays.branch_token_ids(trace, leaf)[arrays.branch_mask(trace, leaf)],
            arrays.branch_logprobs(trace, leaf),
        )
        for reference in array_references(trace)
        for leaf in (reference["branch"],)
    ]


async def fetch_and_check(given: Sequence[Branch]) -> list[Checked]:
    """Fetch the arrays of all, and release them. A branch without them has that as its fault."""
    async with ArrayClient() as client, client.releasing(branch.reference for branch in given):
        complete = [branch for branch in given if not _missing(branch)]
        fetched = await client.fetch_many([branch.reference for branch in complete], FIELDS)
    found = dict(zip(map(id, complete), fetched, strict=True))
    return [_checked(branch, found.get(id(branch))) for branch in given]


def faults_of(branch: Branch, fetched: Fetched) -> list[str]:
    """What does not hold of a branch's arrays; each kind of fault once, at the first token that has it."""
    sampled, logprobs = branch.sampled, branch.logprobs
    if logprobs is None:
        return ["its sampled tokens have no log-probabilities"]
    masks = _rows(fetched["sampling_mask.ids"], fetched["sampling_mask.counts"])
    ids = _rows(fetched["top_logprobs.ids"], fetched["top_logprobs.counts"])
    values = _rows(fetched["top_logprobs.logprobs"], fetched["top_logprobs.counts"])
    if not len(sampled) == len(masks) == len(ids):
        return [f"{len(masks)} masks and {len(ids)} heads for {len(sampled)} sampled tokens"]
    faults: dict[str, str] = {}
    for place, (token, mask, head, value) in enumerate(zip(sampled, masks, ids, values, strict=True)):
        for holds, promise in (
            (token in mask, "the mask has the sampled token"),
            (len(head) and head[0] == token, "the head begins with the sampled token"),
            (len(value) and value[0] == logprobs[place], "the head's first is the token's log-probability"),
            (np.exp(value.astype(np.float64)).sum() <= 1 + 1e-5, "the head's probabilities are at most 1"),
            (np.isin(head, mask).all(), "the head is of what the mask has kept"),
        ):
            if not holds:
                faults.setdefault(promise, f"token {place} of {len(sampled)}: not so that {promise}")
    return list(faults.values())


def _missing(branch: Branch) -> list[str]:
    holes = branch.reference.get("incomplete", {})
    return [f"no {field}: {holes[field]}" for field in FIELDS if field in holes]


def _checked(branch: Branch, fetched: Fetched | None) -> Checked:
    if fetched is None:
        return Checked(branch, np.empty(0, np.int32), tuple(_missing(branch)))
    return Checked(branch, fetched["sampling_mask.counts"], tuple(faults_of(branch, fetched)))


def _rows(flat: NDArray[Any], counts: Iterable[int]) -> list[NDArray[Any]]:
    """`flat` cut into one piece for each count."""
    ends = np.cumsum(np.fromiter(counts, np.int64))
    return np.split(flat, ends)[:-1] if len(ends) else []
