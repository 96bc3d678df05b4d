"""A trainer, as a process: fetches what its standard input names, and releases it.

    python -m benchmarks.array_trainer

A line of the input is a JSON list of references. Prints at its end how many references and bytes there were.
"""

from __future__ import annotations

import json
import sys
import time

from env_client import SyncArrayClient


def main() -> None:
    """Until the end of the input."""
    references = size = 0
    busy = 0.0
    with SyncArrayClient() as client:
        for line in sys.stdin:
            batch = json.loads(line)
            began = time.perf_counter()
            for fetched in client.fetch_many(batch):
                size += sum(array.nbytes for array in fetched.values())
            references += client.release(*batch)
            busy += time.perf_counter() - began
    print(json.dumps({"references": references, "bytes": size, "seconds": busy}), flush=True)


if __name__ == "__main__":
    main()
