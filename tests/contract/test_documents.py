"""What the documents show is what the code does: README runs, what is printed from code is current."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy
import pytest

from env_client import ArrayClient, ArraysNotFoundError, EnvClient
from tests.helpers.documents import ROOT, SECTIONS, rendered
from tests.helpers.pools import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SHOWN_ADDRESS = "127.0.0.1:50051"
ARRAYS = "docs/training_arrays.md"
ENVIRONMENTS = "docs/environments.md"
QUICK_END = ("--drain-seconds", "0", "--linger-seconds", "0")


def block(word: str, document: str = "README.md") -> str:
    """The one code block of a document that has `word`."""
    text = (ROOT / document).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    (found,) = [text for text in blocks if word in text]
    return found


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A worker with README's own hook and environment."""
    folder: Path = tmp_path_factory.mktemp("readme")
    (folder / "my_hooks.py").write_text(block("class Hook"))
    (folder / "my_envs.py").write_text(block("class Echo"))
    arguments = (
        "--env",
        "reasoning-gym",
        "--env",
        "synthetic",
        "--env",
        "my_envs:Echo",
        "--hook",
        "my_hooks:hook",
    )
    async with serving("env_worker", *arguments, *QUICK_END, directory=folder) as server:
        async with EnvClient(server.address) as client:
            await client.wait_until_ready(30)
        yield server.address


@pytest.fixture(scope="module")
async def keeping() -> AsyncIterator[str]:
    """A worker that keeps training arrays."""
    arguments = ("--env", "synthetic", "--hook", "array-keeper", *QUICK_END)
    async with serving("env_worker", *arguments) as server:
        async with EnvClient(server.address) as client:
            await client.wait_until_ready(30)
        yield server.address


async def run_block(word: str, address: str) -> str:
    code = block(word)
    assert SHOWN_ADDRESS in code
    return await run_code(code.replace(SHOWN_ADDRESS, address))


async def run_code(code: str, directory: Path = ROOT) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", code, cwd=directory,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, error.decode()
    return out.decode()


async def test_the_client_on_the_first_screen_runs(address: str) -> None:
    out = await run_block("asyncio.run(main())", address)
    assert re.search(r"delta \d+ bytes", out)
    assert re.search(r"\d+ nodes, ok: True reward: [01]", out)
    assert len([line for line in block("asyncio.run(main())").splitlines() if line]) <= 12


async def test_the_bare_stub_runs(address: str) -> None:
    assert (await run_block("insecure_channel", address)).strip() == "True {'trace-0': 6}"


async def test_the_hook_keeps_and_its_reference_arrives(address: str) -> None:
    async with EnvClient(address) as client:
        episode = await client.run({"turns": 2}, env="synthetic")
    assert json.loads(episode.traces[0].info_json["arrays_at"]) == f"{episode.head.episode_id}/trace-0"
    hook = block("class Hook").partition("class Hook:")[2].partition("\nhook =")[0]
    assert len([line for line in hook.splitlines() if line.strip()]) <= 20


async def test_the_environment_and_its_rehearsal_run(tmp_path: Path) -> None:
    (tmp_path / "my_envs.py").write_text(block("class Echo", ENVIRONMENTS))
    await run_code(block("ScriptedModel", ENVIRONMENTS), tmp_path)


def test_the_hook_says_what_it_holds_and_gives_it_away() -> None:
    scope: dict[str, Any] = {}
    exec(block("class Hook"), scope)
    hook = scope["hook"]
    nodes = [SimpleNamespace(routed_experts=rows) for rows in (numpy.zeros(5, numpy.int16), None)]
    traces = [SimpleNamespace(id=name, nodes=nodes, info={}) for name in ("a", "b")]
    taken, refused = SimpleNamespace(id="taken", traces=traces), SimpleNamespace(id="refused", traces=traces)
    for episode in (taken, refused):
        hook.keep(episode, None)
    assert (hook.held_arrays, hook.held_array_bytes) == (2, 40)
    assert list(hook.take("taken")) == ["a", "b"]
    hook.discard(refused)
    assert (hook.held_arrays, hook.held_array_bytes) == (0, 0), "nothing stays behind"


async def test_the_trainer_fetches(keeping: str) -> None:
    out = await run_block("SyncArrayClient", keeping)
    assert re.fullmatch(r"\(300, 4, 2\) int32\n", out)


async def test_orchestrator_and_trainer_in_short(keeping: str) -> None:
    code = block("asyncio.run(main())", ARRAYS)
    assert SHOWN_ADDRESS in code
    out = await run_code(code.replace(SHOWN_ADDRESS, keeping))
    assert "'routed_experts': ('|u1', (300, 4, 2))" in out
    assert "'top_logprobs.logprobs': ('<f4'" in out


async def test_arrays_with_nothing_but_the_stub(keeping: str, tmp_path: Path) -> None:
    async with EnvClient(keeping, env="synthetic") as client:
        episode = await client.run({"turns": 2})
    (reference,) = json.loads(episode.traces[0].info_json["training_arrays"])
    (tmp_path / "reference.json").write_text(json.dumps(reference))
    code = block("TrainingArrayServiceStub", ARRAYS)
    assert (await run_code(code, tmp_path)).strip() == "routed_experts (400, 4, 2)"
    async with ArrayClient() as client:
        with pytest.raises(ArraysNotFoundError):
            await client.fetch(reference)


async def test_the_environment_runs(address: str) -> None:
    async with EnvClient(address) as client:
        episode = await client.run({"say": "hello"}, env="my_envs:Echo")
    assert episode.head.ok
    assert episode.traces[0].rewards["length"].value > 0


@pytest.mark.parametrize("document", SECTIONS)
def test_what_comes_from_code_is_current(document: str) -> None:
    assert (ROOT / document).read_text() == rendered(document), "run `make docs`"
