"""With which tools a branch was prompted: whichever model was asked, its root or its trace tells."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_worker.domain import Message, Trace
from env_worker.model.http import close_clients
from env_worker.model.simulated import SimulatedModel
from env_worker.testing import ScriptedModel
from tests.engine import OPENAI, SGLANG_0_5_23, VLLM_0_33, ScriptedEngine, expected_ids, held
from tests.helpers.engine_models import QUESTION, active, model_of, new_trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from env_worker.model.base import ModelClient

    Models = Callable[[], AbstractAsyncContextManager[ModelClient]]

SYSTEM = Message.system("Count.")
MORE = Message.user("And 4 dogs?")
PROFILES = {"openai-chat": OPENAI, "sglang-chat": SGLANG_0_5_23}


def tools(*names: str) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names
    ]


def told(trace: Trace, node: int) -> list[Any]:
    """The tools of a node's branch, read as the protocol says it: of a root those rendered into its prompt;
    empty: none, or those of the trace."""
    said = trace.nodes[trace.path(node)[0]].tools_json or trace.tools_json
    return list(json.loads(said)) if said else []


def texts(trace: Trace, node: int) -> list[str]:
    return [trace.nodes[index].message.text for index in trace.path(node)]


@pytest.fixture(
    params=[
        "simulated",
        "scripted",
        "openai-chat",
        "vllm-chat",
        "vllm-completions",
        "vllm-generate",
        "sglang-chat",
    ]
)
def models(request: pytest.FixtureRequest) -> Models:
    """Each model that there is, and each dialect."""

    @asynccontextmanager
    async def asked() -> AsyncIterator[ModelClient]:
        if request.param == "simulated":
            yield SimulatedModel(layers=2)
        elif request.param == "scripted":
            yield ScriptedModel(*["answer"] * 9)
        else:
            async with ScriptedEngine(PROFILES.get(request.param, VLLM_0_33)) as engine:
                yield model_of(engine, request.param)
            await close_clients()

    return asked


async def test_a_turn_with_other_tools_begins_a_branch_that_tells_them(models: Models) -> None:
    trace = new_trace()
    async with models() as model:
        first = await model.chat(trace, [SYSTEM, QUESTION], tools=tools("first"))
        second = await model.chat(trace, [MORE], parent=first.node, tools=tools("second"))
        third = await model.chat(trace, [MORE], parent=second.node, tools=tools("second"))
        bare = await model.chat(trace, [MORE], parent=third.node)
        again = await model.chat(trace, [MORE], parent=first.node, tools=tools("first"))
    asked = [(first, ["first"]), (second, ["second"]), (third, ["second"]), (bare, []), (again, ["first"])]
    for turn, names in asked:
        assert told(trace, turn.node) == tools(*names)
    assert trace.path(third.node)[: len(trace.path(second.node))] == trace.path(second.node)
    assert trace.path(again.node)[0] == trace.path(first.node)[0] == 0
    history = ["Count.", QUESTION.text, first.message.text, MORE.text]
    assert texts(trace, second.node)[:4] == history
    assert texts(trace, bare.node)[:4] == history
    assert len(texts(trace, bare.node)) == 9
    # What was said again was not sampled again, and the first branch is what it was.
    assert [trace.nodes[index].sampled for index in trace.path(second.node)] == [False] * 4 + [True]
    assert texts(trace, first.node) == history[:3]
    assert json.loads(trace.tools_json) == tools("first"), "told once, and true of what relies on it"
    assert sum(type(entry).__name__ == "ToolsSet" for entry in trace.journal.entries) == 1


async def test_tools_that_come_later_are_not_those_of_a_branch_without(models: Models) -> None:
    trace = new_trace()
    async with models() as model:
        bare = await model.chat(trace, [QUESTION])
        root = await model.chat(trace, [QUESTION], tools=tools("root"))
        later = await model.chat(trace, [MORE], parent=bare.node, tools=tools("later"))
    assert [told(trace, turn.node) for turn in (bare, root, later)] == [[], tools("root"), tools("later")]


async def test_the_same_tools_are_one_branch_and_told_once(models: Models) -> None:
    trace = new_trace()
    async with models() as model:
        first = await model.chat(trace, [SYSTEM, QUESTION], tools=tools("first"))
        second = await model.chat(trace, [MORE], parent=first.node, tools=tuple(tools("first")))
    assert trace.branches() == [(0, 1, 2, 3, 4)]
    assert [node.tools_json for node in trace.nodes] == [""] * 5
    assert told(trace, second.node) == tools("first")


async def test_tools_taken_away_and_given_back_make_two_branches(models: Models) -> None:
    """Not one with all of the history at each turn."""
    trace, parent, conversation = new_trace(), None, list[str]()
    async with models() as model:
        for number in range(6):
            offered = tools("act") if number % 2 else []
            turn = await model.chat(trace, [Message.user(f"Step {number}")], parent=parent, tools=offered)
            conversation += [f"Step {number}", turn.message.text]
            assert texts(trace, turn.node) == conversation
            assert told(trace, turn.node) == offered
            parent = turn.node
    assert sum(node.parent is None for node in trace.nodes) == 2
    assert len(trace.nodes) == 12 + 10, "each branch has what was said on it, and once what was on the other"
    assert [node.message.text for node in trace.nodes if node.sampled] == conversation[1::2]


async def test_the_simulation_repairs_the_end_of_the_branch_that_it_goes_on_with() -> None:
    rows = []
    for asked in ([tools("act"), []], [[]]):
        trace, model = new_trace(), SimulatedModel(layers=2)
        parent = first = (await model.chat(trace, [QUESTION])).node
        for offered in asked:
            parent = (await model.chat(trace, [MORE], parent=parent, tools=offered)).node
        assert trace.path(parent)[1] == first
        rows.append(trace.nodes[first].routed_experts)
    assert rows[0] is not None
    assert rows[1] is not None
    assert rows[0].tolist() == rows[1].tolist()


async def test_the_order_of_keys_makes_no_other_tools() -> None:
    trace, model = new_trace(), SimulatedModel(layers=0)
    first = await model.chat(trace, [QUESTION], tools=tools("first"))
    flipped = [dict(reversed(list(tools("first")[0].items())))]
    await model.chat(trace, [MORE], parent=first.node, tools=flipped)
    assert trace.branches() == [(0, 1, 2, 3)]


async def test_the_simulation_renders_tools_at_the_start_as_a_template_does() -> None:
    trace, model = new_trace(), SimulatedModel(layers=2)
    bare = await model.chat(trace, [QUESTION])
    turn = await model.chat(trace, [QUESTION], tools=tools("first"))
    without, root = (trace.nodes[trace.path(one.node)[0]] for one in (bare, turn))
    front = len(root.token_ids) - len(without.token_ids)
    assert front > 0
    assert root.token_ids[front:].tolist() == without.token_ids.tolist()
    assert not root.is_content[: front + 1].any()
    assert root.routed_experts is not None
    assert trace.calls[1].prompt_tokens - trace.calls[0].prompt_tokens == front
    assert turn.message == bare.message


async def test_a_history_that_no_model_was_asked_on_takes_the_first_tools(models: Models) -> None:
    trace = new_trace()
    given = trace.add_node(SYSTEM)
    async with models() as model:
        turn = await model.chat(trace, [QUESTION], parent=given, tools=tools("first"))
    assert trace.path(turn.node) == (0, 1, 2)
    assert told(trace, turn.node) == tools("first")


async def test_what_an_environment_said_of_the_tools_stays(models: Models) -> None:
    trace = new_trace()
    trace.set_tools(json.dumps(tools("said")))
    given = trace.add_node(SYSTEM, tools_json=json.dumps(tools("of", "the root")))
    async with models() as model:
        bare = await model.chat(trace, [QUESTION])
        other = await model.chat(trace, [QUESTION], parent=given, tools=tools("of", "the root"))
    assert trace.path(other.node)[0] == given
    assert [told(trace, turn.node) for turn in (bare, other)] == [[], tools("of", "the root")]
    assert json.loads(trace.tools_json) == tools("said")


async def test_tools_that_are_no_json_are_refused_before_a_model_is_asked(models: Models) -> None:
    trace = new_trace()
    async with models() as model:
        await model.chat(trace, [QUESTION], tools=tools("first"))
        with pytest.raises(ValueError, match="tools"):
            await model.chat(trace, [QUESTION], tools=[{"limit": float("nan")}])
    assert (len(trace.calls), trace.pending) == (1, None)


async def test_an_engine_is_asked_for_all_rows_of_a_prompt_with_other_tools() -> None:
    trace = new_trace()
    async with ScriptedEngine() as engine:
        model = model_of(engine)
        turn = await model.chat(trace, [SYSTEM, QUESTION], tools=tools("first"))
        for _ in range(2):  # until the history counts as one that is continued
            turn = await model.chat(trace, [MORE], parent=turn.node, tools=tools("first"))
        other = await model.chat(trace, [MORE], parent=turn.node, tools=tools("second"))
        body = engine.requests[-1].body
    await close_clients()
    prompt = expected_ids(body["messages"], tools("second")).tolist()
    seen = trace.token_ids(other.node).tolist()
    assert seen[: len(prompt)] == prompt
    nodes = [trace.nodes[index] for index in trace.path(other.node)]
    assert sum(0 if node.routed_experts is None else len(node.routed_experts) for node in nodes) == len(seen)
    assert "incomplete" not in trace.info


async def test_a_branch_that_gets_its_tools_back_is_what_the_engine_saw() -> None:
    trace, parent = new_trace(), None
    async with ScriptedEngine() as engine:
        model = model_of(engine)
        for number in range(6):
            offered = tools("act") if number % 2 else []
            turn = await model.chat(trace, [MORE], parent=parent, tools=offered)
            prompt = expected_ids(engine.requests[-1].body["messages"], offered).tolist()
            assert trace.token_ids(turn.node).tolist()[: len(prompt)] == prompt
            nodes = [trace.nodes[index] for index in trace.path(turn.node)]
            routed = [node.routed_experts for node in nodes]
            assert [0 if rows is None else len(rows) for rows in routed] == [len(n.token_ids) for n in nodes]
            parent = turn.node
    await close_clients()
    assert sum(node.parent is None for node in trace.nodes) == 2
    assert "incomplete" not in trace.info


async def test_chats_at_once_with_other_tools_each_tell_their_own() -> None:
    trace = new_trace()
    async with ScriptedEngine() as engine:
        model = model_of(engine)
        engine.fail(*(held(f"gate-{number}") for number in range(3)))
        offered = [[], tools("one"), tools("other")]
        asked = [asyncio.create_task(model.chat(trace, [QUESTION], tools=given)) for given in offered]
        await active(engine, 3)
        for number in (2, 0, 1):
            engine.gate(f"gate-{number}").set()
        turns = await asyncio.gather(*asked)
    await close_clients()
    assert [told(trace, turn.node) for turn in turns] == offered


@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 20), st.sampled_from([(), ("a",), ("b",), ("a", "b")])),
        max_size=7,
    )
)
def test_each_answer_can_be_traced_to_the_tools_it_was_asked_with(
    program: list[tuple[int | None, tuple[str, ...]]],
) -> None:
    async def play() -> None:
        for model in (SimulatedModel(layers=1, mask_width=0), ScriptedModel(*["answer"] * 9)):
            trace, asked = new_trace(), {}
            for parent, names in program:
                parent = parent % len(trace.nodes) if parent is not None and trace.nodes else None
                before = [] if parent is None else texts(trace, parent)
                turn = await model.chat(trace, [MORE], parent=parent, tools=tools(*names))
                assert texts(trace, turn.node) == [*before, MORE.text, turn.message.text]
                asked[turn.node] = tools(*names)
            assert {node: told(trace, node) for node in asked} == asked

    asyncio.run(play())
