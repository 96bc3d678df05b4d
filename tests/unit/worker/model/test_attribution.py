"""A turn's tokens and rows are where they belong: the fixed cases, each as it comes up."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from env_worker.arrays.checks import field_states
from env_worker.domain import Message, SamplingMask, TopLogprobs, Trace
from env_worker.model.attribution import Written, place, write_turn
from env_worker.model.dialects.base import Answer, RoutingRows
from tests.helpers.row_engine import answer, row, rows_of

ASKED = [Message.system("be brief"), Message.user("hi")]
MORE = [Message.user("more")]


def turn(
    trace: Trace,
    parent: int | None,
    messages: list[Message],
    prompt: list[int],
    sampled: list[int],
    *,
    start: int | None = None,
    **fields: Any,
) -> Written:
    """A turn with rows from `start` on; None: no rows."""
    given = None if start is None else rows_of([*prompt, *sampled], start)
    said = answer(prompt, sampled, routing=given, **fields)
    return write_turn(trace, place(trace, parent, messages, said.prompt_ids), said)


def ids_of(trace: Trace) -> list[list[int]]:
    return [node.token_ids.tolist() for node in trace.nodes]


def routed(trace: Trace, leaf: int) -> list[Any]:
    """The rows on the path to `leaf`, as lists."""
    arrays = [trace.nodes[index].routed_experts for index in trace.path(leaf)]
    return [one.tolist() for array in arrays if array is not None for one in array]


def expected(ids: list[int], *, wide: int = 0) -> list[Any]:
    """The rows of all of `ids`, the last of them a copy of the one before."""
    made = [row(ids, position, wide=wide).tolist() for position in range(len(ids) - 1)]
    return [*made, made[-1]]


def test_a_conversation_grows_along_one_branch() -> None:
    trace = Trace("trace-0")
    first = turn(trace, None, ASKED, [1, 2, 3], [4, 5], start=0)
    second = turn(trace, first.node, MORE, [1, 2, 3, 4, 5, 6, 7], [8], start=4)
    assert (first, second) == (Written(2, {}, False), Written(4, {}, False))
    assert ids_of(trace) == [[], [1, 2, 3], [4, 5], [6, 7], [8]]
    assert [node.parent for node in trace.nodes] == [None, 0, 1, 2, 3]
    assert [node.mask.tolist() for node in trace.nodes[1:]] == [[False] * 3, [True] * 2, [False] * 2, [True]]
    assert [node.sampled for node in trace.nodes] == [False, False, True, False, True]
    assert routed(trace, 4) == expected([1, 2, 3, 4, 5, 6, 7, 8])
    assert field_states(trace.nodes, "routed_experts")[-1].hole is None


def test_the_placeholder_is_the_row_before_until_the_next_prefill() -> None:
    trace = Trace("trace-0")
    node = turn(trace, None, ASKED, [1, 2, 3], [4], start=0).node
    assert routed(trace, node) == expected([1, 2, 3, 4])
    turn(trace, node, MORE, [1, 2, 3, 4, 9], [8], start=3)
    assert routed(trace, node)[-1] == row([1, 2, 3, 4], 3).tolist() != routed(trace, node)[-2]


def test_a_history_that_was_tokenised_anew_starts_a_branch() -> None:
    trace = Trace("trace-0")
    first = turn(trace, None, ASKED, [1, 2, 3], [70, 4, 5], text="thought, said")
    second = turn(trace, first.node, MORE, [1, 2, 3, 4, 5, 6], [8])
    assert second == Written(5, {}, True)
    assert ids_of(trace)[3:] == [[], [4, 5, 6], [8]]
    assert trace.branches() == [(0, 1, 2), (0, 1, 3, 4, 5)]
    assert trace.nodes[3].message is trace.nodes[2].message
    assert not trace.nodes[3].sampled
    assert trace.token_ids(5).tolist() == [1, 2, 3, 4, 5, 6, 8]


def test_from_the_first_token_on_it_starts_at_a_root_with_its_tools() -> None:
    trace = Trace("trace-0")
    root = trace.add_node(ASKED[0], [1, 2], tools_json="[]")
    placement = place(trace, root, MORE, np.array([1, 3], np.int32))
    assert (placement.parent, placement.reused, placement.rewritten) == (None, 0, True)
    assert [(one.message, one.tools_json) for one in placement.added] == [(ASKED[0], "[]"), (MORE[0], "")]
    write_turn(trace, placement, answer([1, 3], [4]))
    assert trace.branches() == [(0,), (1, 2, 3)]
    assert (trace.nodes[1].tools_json, ids_of(trace)[1:]) == ("[]", [[], [1, 3], [4]])


def test_a_history_that_was_cut_short_starts_a_branch() -> None:
    trace = Trace("trace-0")
    node = turn(trace, None, ASKED, [1, 2, 3], [4, 5], start=0).node
    assert turn(trace, node, [], [1, 2], [8], start=0).rewritten
    assert trace.branches() == [(0, 1, 2), (0, 3, 4, 5)]
    assert (ids_of(trace)[3:], routed(trace, 5)) == ([[], [1, 2], [8]], expected([1, 2, 8]))
    assert routed(trace, 2) == expected([1, 2, 3, 4, 5])


def test_without_a_message_the_rest_of_the_prompt_begins_the_answer() -> None:
    trace = Trace("trace-0")
    asked = trace.add_node(ASKED[1], [1, 2])
    node = turn(trace, asked, [], [1, 2, 3], [4, 5], start=0, logprobs=np.array([-1, -2], np.float32)).node
    assert ids_of(trace) == [[1, 2], [3, 4, 5]]
    assert trace.nodes[node].mask.tolist() == [False, True, True]
    assert trace.nodes[node].logprobs.tolist() == [-1, -2]
    assert routed(trace, node) == expected([1, 2, 3, 4, 5])


def test_branches_from_one_node_share_the_row_that_the_first_prefill_found() -> None:
    trace = Trace("trace-0")
    node = turn(trace, None, ASKED, [1, 2], [3], start=0).node
    one = turn(trace, node, [*MORE, *MORE], [1, 2, 3, 4], [5], start=2)
    found = copy.deepcopy(trace.nodes[node].routed_experts)
    other = answer([1, 2, 3, 6], [7], routing=rows_of([1, 2, 3, 6, 7], 2, wide=300))
    two = write_turn(trace, place(trace, node, MORE, other.prompt_ids), other)
    assert routed(trace, one.node) == expected([1, 2, 3, 4, 5])
    assert np.array_equal(trace.nodes[node].routed_experts, found)
    assert routed(trace, two.node)[3:] == expected([1, 2, 3, 6, 7], wide=300)[3:]


def test_an_empty_answer_leaves_its_placeholder_to_the_prompt() -> None:
    trace = Trace("trace-0")
    empty = turn(trace, None, ASKED, [1, 2, 3], [], start=0).node
    assert routed(trace, empty) == expected([1, 2, 3])
    again = turn(trace, 1, [], [1, 2, 3], [4], start=2).node
    assert routed(trace, again) == expected([1, 2, 3, 4])
    after = turn(trace, empty, MORE, [1, 2, 3, 7], [8], start=2).node
    assert routed(trace, after) == expected([1, 2, 3, 7, 8])


def test_the_only_token_there_is_has_a_row_of_zeros() -> None:
    trace = Trace("trace-0")
    node = turn(trace, None, ASKED, [1], [], start=0).node
    assert routed(trace, node) == [[[0, 0], [0, 0]]]
    assert routed(trace, turn(trace, node, MORE, [1, 2], [3], start=0).node) == expected([1, 2, 3])


def test_wider_ids_widen_what_they_repair() -> None:
    trace = Trace("trace-0")
    node = turn(trace, None, ASKED, [1, 2, 3], [4], start=0).node
    wide = answer([1, 2, 3, 4, 5], [6], routing=rows_of([1, 2, 3, 4, 5, 6], 3, wide=300))
    leaf = write_turn(trace, place(trace, node, MORE, wide.prompt_ids), wide).node
    dtypes = [node.routing.dtype for node in trace.nodes if node.routing is not None]
    assert dtypes == [np.uint8, np.uint16, np.uint16, np.uint16]
    ids = [1, 2, 3, 4, 5, 6]
    assert routed(trace, leaf) == [*expected(ids)[:3], *expected(ids, wide=300)[3:]]


@pytest.mark.parametrize(
    ("given", "hole"),
    [
        (rows_of([*range(7)], 5), "the engine gave rows from position 5 on, and they are needed from 4 on"),
        (rows_of([*range(9)], 4), "the engine gave 4 rows from position 4 on, expected 2"),
        (
            rows_of([*range(7)], 4, layers=3),
            "the engine gave rows of (layers, top_k) (3, 2), in the turns before (2, 2)",
        ),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_a_hole_of_that_turn(given: RoutingRows, hole: str) -> None:
    trace = Trace("trace-0")
    first = turn(trace, None, ASKED, [0, 1, 2], [3, 4], start=0).node
    before = routed(trace, first)
    said = answer([0, 1, 2, 3, 4, 5], [6], routing=given)
    second = write_turn(trace, place(trace, first, MORE, said.prompt_ids), said)
    assert second.holes == {"routed_experts": hole}
    assert routed(trace, second.node) == before
    assert trace.nodes[3].holes == trace.nodes[4].holes == {"routed_experts": hole}
    told = f"node 3 of 1 tokens has no routed_experts: {hole}"
    assert field_states(trace.nodes, "routed_experts")[second.node].hole == told
    third = turn(trace, second.node, MORE, [*range(8)], [8], start=6).node
    assert routed(trace, third)[len(before) :] == expected([*range(9)])[7:]
    assert not trace.nodes[third].holes
    assert field_states(trace.nodes, "routed_experts")[third].hole == told
    fourth = turn(trace, first, MORE, [0, 1, 2, 3, 4, 9], [8], start=4).node
    assert routed(trace, fourth) == expected([0, 1, 2, 3, 4, 9, 8]), "another branch has none of it"


def test_without_token_ids_the_answer_alone_says_what_is_missing() -> None:
    trace = Trace("trace-0")
    holes = {"token_ids": "this dialect has none", "routed_experts": "there are no token ids"}
    said = Answer(Message.assistant("answer"), holes=holes)
    first = write_turn(trace, place(trace, None, ASKED, None), said)
    assert first == Written(2, holes, False)
    assert [dict(node.holes) for node in trace.nodes] == [{}, {}, holes]
    assert ids_of(trace) == [[], [], []]
    second = turn(trace, first.node, MORE, [1, 2, 3], [4], start=0).node
    assert (trace.token_ids(second).tolist(), routed(trace, second)) == ([1, 2, 3, 4], expected([1, 2, 3, 4]))
    third = write_turn(trace, place(trace, second, MORE, None), said)
    assert not third.rewritten
    assert turn(trace, third.node, MORE, [1, 2, 3, 4, 5], [6], start=3).rewritten is False
    assert str(field_states(trace.nodes, "routed_experts")[-1].hole).endswith(": there are no token ids")


def test_what_an_answer_has_for_its_tokens_is_on_its_node() -> None:
    trace = Trace("trace-0")
    head = TopLogprobs(np.array([4, 9]), np.array([-0.5, -1.0], np.float32), np.array([2, 0]))
    mask = SamplingMask(np.array([4, 5]), np.array([1, 1]))
    holes = {"logprobs": "NaN at token 0"}
    written = turn(
        trace, None, ASKED, [1, 2], [4, 5], top_logprobs=head, sampling_mask=mask, holes=holes, start=0
    )
    node = trace.nodes[written.node]
    assert (node.top_logprobs, node.sampling_mask) == (head, mask)
    assert (node.holes, len(node.logprobs), trace.nodes[1].holes) == (holes, 0, {})


def test_a_node_without_tokens_sets_no_shape() -> None:
    trace = Trace("trace-0")
    node = turn(trace, None, ASKED, [1, 2], [3], start=0).node
    note = trace.add_node(MORE[0], parent=node, routed_experts=np.zeros((0, 9, 9), np.uint8))
    assert turn(trace, note, MORE, [1, 2, 3, 4], [5], start=2).holes == {}


def test_rows_do_not_hold_the_engines_whole_answer() -> None:
    trace = Trace("trace-0")
    node = turn(trace, None, ASKED, [*range(50)], [50], start=0).node
    leaf = turn(trace, node, MORE, [*range(52)], [52], start=0).node
    assert routed(trace, leaf) == expected([*range(53)])
    arrays = [array for one in trace.nodes if (array := one.routed_experts) is not None]
    owners = [array if array.base is None else array.base for array in arrays]
    held = sum({id(owner): owner.nbytes for owner in owners}.values())
    assert held <= trace.array_bytes + 4, "but for the placeholder, which was replaced"


def test_a_parent_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="leaf is 3, expected the index"):
        place(Trace("trace-0"), 3, MORE, np.array([1], np.int32))


def test_rows_that_come_with_a_later_turn_fill_what_an_earlier_one_left_out() -> None:
    trace = Trace("trace-0")
    first = turn(trace, None, ASKED, [1, 2, 3], [70, 4, 5], start=0)
    # A template that leaves out reasoning: rows were asked for from the last known token on, and are needed
    # from an earlier one.
    second = turn(trace, first.node, MORE, [1, 2, 3, 4, 5, 6, 7, 8], [9], start=5)
    assert second.rewritten
    assert "rows from position 5 on" in second.holes["routed_experts"]
    assert field_states(trace.nodes, "routed_experts")[second.node].hole is not None
    third = turn(trace, second.node, MORE, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [11], start=0)
    assert (third.holes, third.rewritten) == ({}, False)
    assert routed(trace, third.node) == expected([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    assert field_states(trace.nodes, "routed_experts")[third.node].hole is None
    assert all(not trace.nodes[index].holes for index in trace.path(third.node))


def test_a_node_is_not_filled_without_the_placeholder_before_it() -> None:
    trace = Trace("trace-0")
    first = turn(trace, None, ASKED, [1, 2], [3, 4], start=0)
    second = turn(trace, first.node, [], [1, 2, 3, 4], [5], holes={"routed_experts": "none came"})
    third = turn(trace, second.node, [], [1, 2, 3, 4, 5], [6], start=4)
    hole = field_states(trace.nodes, "routed_experts")[third.node].hole
    assert hole == f"node {second.node} of 1 tokens has no routed_experts: none came"
    fourth = turn(trace, third.node, [], [1, 2, 3, 4, 5, 6], [7], start=3)
    assert routed(trace, fourth.node) == expected([1, 2, 3, 4, 5, 6, 7])
    assert field_states(trace.nodes, "routed_experts")[fourth.node].hole is None


def test_rows_from_the_middle_of_a_node_do_not_fill_it() -> None:
    trace = Trace("trace-0")
    first = turn(trace, None, ASKED, [1, 2, 3], [4, 5], holes={"routed_experts": "none came"})
    second = turn(trace, first.node, MORE, [1, 2, 3, 4, 5, 6], [7], start=4)
    assert trace.nodes[first.node].routing is None
    assert second.holes == {}
