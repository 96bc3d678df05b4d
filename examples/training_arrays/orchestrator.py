"""The orchestrator: runs episodes and hands one JSON line a branch to the trainer, on standard output.

Token ids, masks and rewards pass through it, and a reference to the training arrays, of less than 1 KiB. The
arrays themselves do not.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from env_client import EnvClient, array_references, arrays

# 20,000 tokens an episode, on two branches that share their beginning.
TASK = {"turns": 20, "tokens_per_turn": 1000, "layers": 48, "top_k": 8, "branches": 2}


async def run(client: EnvClient, seed: int) -> tuple[int, list[dict[str, Any]]]:
    """Run an episode: the bytes that came for it, and a line for each of its branches."""
    async with client.stream({**TASK, "seed": seed}) as stream:
        episode = await stream.result()
    lines = []
    for trace in episode.traces:
        checksums = json.loads(trace.info_json["array_checksums"])
        for reference in array_references(trace):
            leaf = reference["branch"]
            lines.append(
                {
                    "reference": reference,
                    "token_ids": arrays.branch_token_ids(trace, leaf).tolist(),
                    "mask": arrays.branch_mask(trace, leaf).astype(int).tolist(),
                    "reward": arrays.reward(trace),
                    "checksums": checksums[str(leaf)],
                }
            )
    return stream.received_bytes, lines


async def main(target: str, episodes: int) -> None:
    """Run so many at once."""
    async with EnvClient(target, env="synthetic", owner="example") as client:
        await client.wait_until_ready(30)
        done = await asyncio.gather(*(run(client, seed) for seed in range(episodes)))
    lines = [line for _, some in done for line in some]
    for line in lines:
        print(json.dumps(line))
    came = sum(received for received, _ in done)
    stayed = sum(array["bytes"] for line in lines for array in line["reference"]["arrays"].values())
    print(
        f"orchestrator: {episodes} episodes, {len(lines)} branches; {came / 1e6:.1f} MB passed through, "
        f"{stayed / 1e6:.1f} MB of training arrays stayed in the worker",
        file=sys.stderr,
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
