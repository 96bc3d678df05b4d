"""The trainer: two ranks, each of which fetches its half of every branch straight from the worker.

It reads the orchestrator's lines from standard input, checks what it fetched, and releases it. Exit code 1 if
anything differs.
"""

from __future__ import annotations

import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from env_client import SyncArrayClient

Arrays = dict[str, np.ndarray[Any, Any]]


class Rank:
    """One of two. `shared_memory=False` makes it fetch as a rank on another host would."""

    def __init__(self, number: int, *, shared_memory: bool) -> None:
        self.number = number
        self.client = SyncArrayClient(shared_memory=shared_memory)
        self.fetched_bytes = 0

    def fetch(self, reference: dict[str, Any]) -> Arrays:
        """Its half of a branch: of `routed_experts` its rows, of the other arrays its sampled tokens'."""
        middle = reference["tokens"] // 2
        half = slice(0, middle) if self.number == 0 else slice(middle, None)
        arrays = self.client.fetch(reference, tokens=half)
        self.fetched_bytes += sum(array.nbytes for array in arrays.values())
        return arrays


def faults_of(line: dict[str, Any], halves: list[Arrays]) -> list[str]:
    """How the halves, end to end, differ from what the worker's hook has seen."""
    faults = []
    for name, expected in line["checksums"].items():
        digest = hashlib.sha256()
        for half in halves:
            digest.update(half[name])
        if digest.hexdigest() != expected:
            faults.append(f"{name} has another checksum")
    rows = sum(len(half["routed_experts"]) for half in halves)
    sampled = sum(len(half["sampling_mask.counts"]) for half in halves)
    if (rows, sampled) != (len(line["token_ids"]), sum(line["mask"])):
        faults.append(f"{rows} rows and {sampled} counts do not fit its tokens and mask")
    return faults


def main() -> int:
    """Fetch, check and release what the orchestrator names."""
    lines = [json.loads(line) for line in sys.stdin]
    references = [line["reference"] for line in lines]
    near, far = ranks = [Rank(0, shared_memory=True), Rank(1, shared_memory=False)]
    faults = []
    with near.client, far.client, ThreadPoolExecutor(2) as threads, near.client.releasing(references):
        for line in lines:
            reference = line["reference"]
            halves = list(threads.map(lambda rank, asked=reference: rank.fetch(asked), ranks))
            faults += [f"branch {reference['branch']}: {fault}" for fault in faults_of(line, halves)]
    for fault in faults:
        print(f"trainer: {fault}", file=sys.stderr)
    first, second = (f"{rank.fetched_bytes / 1e6:.1f} MB" for rank in ranks)
    print(
        f"trainer: {len(lines)} branches fetched, checked and released, {len(faults)} faults; rank 0 took "
        f"{first} (mapped where it can be), rank 1 {second} (streamed)",
        file=sys.stderr,
    )
    return 1 if faults or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
