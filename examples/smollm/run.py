"""A real model, once: `python -m examples.smollm.run`.

Starts the engine, a broker and one worker; lets the model answer 20 tasks of reasoning-gym through the pool;
then a trainer fetches the heads and masks of what it sampled. Everything ends with it, also on Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from env_client import EnvClient, arrays
from examples.smollm.needs import MISSING, pool_lacks
from examples.smollm.trainer import Branch, Checked, branches, fetch_and_check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envtrio.v1.episode_pb2 import Episode

ROOT = Path(__file__).resolve().parents[2]
MODEL = "SmolLM2"
STOP_SECONDS = 30.0
READY_SECONDS = 60.0

SAMPLING = {
    "temperature": 0.7,
    "top_k": 40,
    "top_p": 0.95,
    "max_tokens": 96,
    "top_logprobs_count": 5,
    "seed": 7,
}
EASY: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "products": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "basic_arithmetic": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "gcd": {"min_numbers": 2, "max_numbers": 2, "min_value": 2, "max_value": 10},
}
TASKS = [
    {"dataset": dataset, "seed": 1, "index": index, "params": params, "max_tries": 2}
    for dataset, params in EASY.items()
    for index in range(5)
]

BROKER = (
    *("-m", "env_broker", "serve", "--listen", "127.0.0.1:0", "--log-level", "error"),
    *("--drain-seconds", "0", "--linger-seconds", "0"),
)
WORKER = (
    *("-m", "env_worker", "serve", "--env", "reasoning-gym", "--hook", "array-keeper"),
    *("--model", MODEL, "--model-dialect", "vllm-generate", "--model-logprobs-mode", "processed"),
    *("--model-arrays", "top_logprobs,sampling_mask", "--log-level", "error"),
    *("--drain-seconds", "0", "--linger-seconds", "0", "--exit-with-stdin"),
)


class Played(NamedTuple):
    """An episode, the task that it was of, and its branches."""

    task: dict[str, Any]
    episode: Episode
    branches: list[Branch]


@contextmanager
def running(name: str, *arguments: str, python: str = sys.executable) -> Iterator[subprocess.Popen[str]]:
    """A process that has ended when this is left. Its session is its own: Ctrl-C is not for it."""
    with subprocess.Popen(
        (python, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                code = process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            if code:
                print(f"the {name} ended with exit code {code}", file=sys.stderr)


def address_of(name: str, process: subprocess.Popen[str]) -> str:
    """The address that it listens on. SystemExit if it ends before that, MISSING if it has said why."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("listening on "):
            return line.removeprefix("listening on ").strip()
    code = process.wait()
    raise SystemExit(code if code == MISSING else f"the {name} ended before it listened")


async def play(broker: str) -> list[Played]:
    """All tasks at once; the engine takes one request after another."""
    async with EnvClient(broker, env="reasoning-gym", owner="smollm", sampling=SAMPLING) as client:
        await client.wait_until_ready(READY_SECONDS)
        episodes = await asyncio.gather(*(client.run(task) for task in TASKS))
    return [
        Played(task, episode, [branch for trace in episode.traces for branch in branches(trace)])
        for task, episode in zip(TASKS, episodes, strict=True)
    ]


async def use(broker: str) -> int:
    """Play, fetch and print. The exit code: 1 where an episode failed, or an array is not as it should be."""
    started = time.perf_counter()
    played = await play(broker)
    seconds = time.perf_counter() - started
    checked = await fetch_and_check([branch for each in played for branch in each.branches])
    found = {id(each.branch): each for each in checked}
    print(f"{'task':<18} reward  turns  branches  sampled  mask of a token          the model's last words")
    for each in played:
        print(_line(each, [found[id(branch)] for branch in each.branches]))
    return _summary(played, checked, seconds)


def _line(played: Played, checked: Sequence[Checked]) -> str:
    trace = played.episode.traces[0]
    reward = arrays.reward(trace)
    told = "  none" if reward is None else f"{reward:6.2f}"
    kept = [int(count) for each in checked for count in each.kept]
    mask = f"{sum(kept) / len(kept):4.1f} on average, up to {max(kept)}" if kept else "none"
    turns = sum(node.sampled for node in trace.nodes)
    name = f"{played.task['dataset']} {played.task['index']}"
    words = " ".join(trace.nodes[-1].message.content[0].text.split()) if trace.nodes else ""
    words = words if len(words) <= 42 else f"...{words[-39:]}"
    return f"{name:<18} {told}  {turns:5}  {len(checked):8}  {len(kept):7}  {mask:<23}  {words}"


def _summary(played: Sequence[Played], checked: Sequence[Checked], seconds: float) -> int:
    failed = [each for each in played if not each.episode.head.ok]
    for each in failed:
        for trace in each.episode.traces:
            for error in trace.errors:
                print(f"{each.task['dataset']} {each.task['index']}: {error.phase}: {error.message}")
    faults = [fault for each in checked for fault in each.faults]
    for fault in faults:
        print(f"trainer: {fault}")
    sampled = sum(node.sampled for each in played for node in each.episode.traces[0].nodes)
    tokens = sum(len(each.branch.sampled) for each in checked)
    rewards = [arrays.episode_reward(each.episode) or 0.0 for each in played]
    some, whole = sum(reward > 0 for reward in rewards), sum(reward >= 1 for reward in rewards)
    print(
        f"\n{len(played)} tasks in {seconds:.0f} s, {len(failed)} failed; {sampled} turns; "
        f"{some} have some reward, {whole} all of it"
        f"\ntrainer: {len(checked)} branches of {tokens} sampled tokens fetched, checked and released, "
        f"{len(faults)} faults"
    )
    holes = {item for each in checked for item in each.branch.reference.get("incomplete", {}).items()}
    for field, reason in sorted(holes):
        print(f"incomplete: {field}: {reason}")
    return 1 if failed or faults or not checked else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: that of `use`, or MISSING where a package is not installed."""
    parser = argparse.ArgumentParser(prog="python -m examples.smollm.run", description=__doc__)
    parser.add_argument(
        "--engine-python",
        default=sys.executable,
        help="the Python that has llama-cpp-python; default: this one",
    )
    parser.add_argument("--threads", default="1", help="of llama.cpp")
    given = parser.parse_args(arguments)
    if lacks := pool_lacks():
        print(lacks, file=sys.stderr)
        return MISSING
    engine_arguments = ("-m", "examples.smollm.engine", "--exit-with-stdin", "--threads", given.threads)
    with running("engine", *engine_arguments, python=given.engine_python) as engine:
        url = address_of("engine", engine)
        with running("broker", *BROKER) as broker_process:
            broker = address_of("broker", broker_process)
            with running("worker", *WORKER, "--model-url", url, "--broker", broker):
                print(f"the engine listens on {url}, the broker on {broker}", flush=True)
                return asyncio.run(use(broker))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
