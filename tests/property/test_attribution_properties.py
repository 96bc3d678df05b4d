"""Whatever an engine and an environment do, a branch is what the engine saw, with the rows that it gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from env_worker.arrays.checks import field_states
from env_worker.domain import Message, Trace
from env_worker.model.attribution import place, write_turn
from env_worker.model.dialects.base import Answer
from tests.helpers.row_engine import answer, row, rows_of

REASON = "the engine was started without it"


@dataclass(frozen=True)
class Asked:
    """A turn. Of the history's tokens the prompt has the first `kept` hundredths, one of them `changed`."""

    parent: int | None
    messages: int
    kept: int
    changed: int | None
    new: tuple[int, ...]
    sampled: tuple[int, ...]
    without_ids: bool
    rows: str
    wide: int


turns = st.builds(
    Asked,
    parent=st.none() | st.integers(0, 40) | st.just(-1),
    messages=st.integers(0, 3),
    kept=st.sampled_from([100, 100, 100, 100, 60, 0]),
    changed=st.none() | st.none() | st.none() | st.integers(0, 99),
    new=st.lists(st.integers(0, 9), max_size=4).map(tuple),
    sampled=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    without_ids=st.sampled_from([False, False, False, False, True]),
    rows=st.sampled_from(["asked", "asked", "asked", "whole", "whole", "none", "late", "short"]),
    wide=st.sampled_from([0, 0, 0, 300]),
)


@dataclass
class Model:
    """What must be in the trace, kept in lists, the slow way."""

    trace: Trace = field(default_factory=lambda: Trace("trace-0"))
    ids: list[list[int]] = field(default_factory=list)
    """Of each node, from its root on."""
    rows: list[dict[int, Any]] = field(default_factory=list)
    """Of each node: position to the row that the engine gave, None for a placeholder."""

    def play(self, number: int, asked: Asked) -> None:
        nodes = self.trace.nodes
        parent = asked.parent if nodes else None
        if parent is not None:
            parent = len(nodes) - 1 if parent < 0 else parent % len(nodes)
        history = [] if parent is None else self.ids[parent]
        prompt = history[: len(history) * asked.kept // 100]
        if asked.changed is not None and prompt:
            prompt[asked.changed * len(prompt) // 100] += 10
        prompt = [*prompt, *asked.new]
        messages = [Message.user(f"{number}.{index}") for index in range(asked.messages)]
        said = self._answer(asked, prompt, max(len(history) - 1, 0))
        path = () if parent is None else self.trace.path(parent)
        texts = [*(nodes[index].message for index in path), *messages, said.message]
        before = [(node, node.message, node.token_ids, node.mask, dict(node.holes)) for node in nodes]
        count = len(nodes)

        written = write_turn(self.trace, place(self.trace, parent, messages, said.prompt_ids), said)

        assert written.node == len(nodes) - 1
        new_path = self.trace.path(written.node)
        assert [nodes[index].message for index in new_path] == texts
        reused = [index for index in new_path if index < count]
        filled = self._learn(said, reused, asked)
        for index, (node, message, token_ids, mask, holes) in enumerate(before):
            assert (node.message, node.token_ids, node.mask) == (message, token_ids, mask)
            assert node.holes == ({} if index in filled else holes)
        assert (written.rewritten, len(reused)) == self._deepest(path, prompt, asked.without_ids)
        seen = history if asked.without_ids else [*prompt, *asked.sampled]
        assert self.trace.token_ids(written.node).tolist() == seen
        answered = nodes[written.node]
        assert answered.sampled_tokens == (0 if asked.without_ids else len(asked.sampled))
        assert answered.token_ids[answered.mask].tolist() == ([] if asked.without_ids else [*asked.sampled])
        assert not any(nodes[index].mask.any() for index in range(count, written.node))
        assert answered.holes == written.holes

    def _answer(self, asked: Asked, prompt: list[int], wanted: int) -> Answer:
        if asked.without_ids:
            return Answer(Message.assistant("answer"), holes={"routed_experts": REASON})
        if asked.rows == "none":
            return answer(prompt, asked.sampled, holes={"routed_experts": REASON})
        ids = [*prompt, *asked.sampled]
        start = {"whole": 0, "late": wanted + 1}.get(asked.rows, wanted)
        given = rows_of(ids, start, wide=asked.wide)
        if asked.rows == "short" and len(given.rows):
            given = given._replace(rows=given.rows[:-1])
        return answer(prompt, asked.sampled, routing=given)

    def _deepest(self, path: tuple[int, ...], prompt: list[int], without_ids: bool) -> tuple[bool, int]:
        fits = [without_ids or self.ids[index] == prompt[: len(self.ids[index])] for index in path]
        return not all(fits), sum(fits)

    def _learn(self, said: Answer, reused: list[int], asked: Asked) -> set[int]:
        """Adds the nodes of the turn, by what the engine gave and not by what the trace has. Which earlier
        ones have got rows that they had none of."""
        nodes = self.trace.nodes
        for index in range(len(self.ids), len(nodes)):
            parent = nodes[index].parent
            self.ids.append([*([] if parent is None else self.ids[parent]), *nodes[index].token_ids.tolist()])
            self.rows.append({})
        if said.routing is None or said.prompt_ids is None:
            return set()
        ids = self.ids[-1]
        first = len(self.ids[reused[-1]]) if reused else 0
        start, given = said.routing
        fits = start <= max(first - 1, 0) and len(given) == len(ids) - 1 - start
        if len(ids) == first or not fits:
            return set()
        real = {position: row(ids, position, wide=asked.wide) for position in range(start, len(ids) - 1)}
        for index in reused:
            if first - 1 in self.rows[index] and self.rows[index][first - 1] is None:
                self.rows[index][first - 1] = real[first - 1]
        filled = {
            index
            for index in reused
            if not self.rows[index]
            and len(nodes[index].token_ids)
            and ((begin := len(self.ids[index]) - len(nodes[index].token_ids)) > start or begin == start == 0)
        }
        begins = {len(self.ids[index]) - len(nodes[index].token_ids) for index in filled}
        for index in reused:
            for position, value in self.rows[index].items():
                if value is None and position + 1 in begins:
                    self.rows[index][position] = real[position]
        new = {*self.trace.path(len(nodes) - 1)} - {*reused}
        for index in new | filled:
            end = len(self.ids[index])
            for position in range(end - len(nodes[index].token_ids), end):
                self.rows[index][position] = real.get(position)
        return filled

    def check_rows(self) -> None:
        """Each row is the engine's of its place, or the placeholder; none is where it gave none."""
        for index, node in enumerate(self.trace.nodes):
            first = len(self.ids[index]) - len(node.token_ids)
            assert (node.routed_experts is None) == (not self.rows[index])
            for offset, got in enumerate(() if node.routed_experts is None else node.routed_experts):
                real = self.rows[index][first + offset]
                if real is not None:
                    assert np.array_equal(got, real)
                else:
                    assert offset == len(node.token_ids) - 1, "a placeholder inside a node"

    def check_branches(self) -> None:
        """A branch that has the rows of all its tokens is complete, and its only placeholder is its last row;
        of any other branch the hole is told."""
        states = field_states(self.trace.nodes, "routed_experts")
        for path in self.trace.branches():
            lacking = [index for index in path if self.trace.nodes[index].holes]
            hole = states[path[-1]].hole
            if not any(self.rows):
                assert str(hole).startswith("absent: no node of the trace has routed_experts")
            elif lacking:
                reason = self.trace.nodes[lacking[0]].holes["routed_experts"]
                assert f"node {lacking[0]} of" in str(hole)
                assert str(hole).endswith(f": {reason}")
            else:
                assert hole is None
                rows = [value for index in path for value in self.rows[index].values()]
                assert len(rows) == len(self.ids[path[-1]])
                assert not any(value is None for value in rows[:-1])


@settings(max_examples=200)
@given(st.lists(turns, max_size=7))
def test_a_branch_is_what_the_engine_saw(program: list[Asked]) -> None:
    model = Model()
    for number, asked in enumerate(program):
        model.play(number, asked)
        model.check_rows()
    model.check_branches()
