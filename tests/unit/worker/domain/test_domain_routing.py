"""Routing: rows are repaired without a copy of the others, and what was given out never changes."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from env_worker.domain import Message, Node
from env_worker.domain.routing import Routing

ROWS = 200


def experts(rows: int = ROWS, value: int = 1) -> np.ndarray:
    return np.full((rows, 2, 2), value, np.uint8)


def node(rows: int = ROWS) -> Node:
    return Node(Message.user("x"), range(rows), routed_experts=experts(rows))


def test_a_repair_copies_nothing_but_its_rows() -> None:
    repaired = node()
    array = repaired.routed_experts
    repaired.repair_routing(ROWS - 1, experts(1, 7))
    assert repaired.array_bytes == 4 * ROWS
    routing = repaired.routing
    assert routing is not None
    assert routing.parts[0] is array
    assert [(first, rows.tolist()) for first, rows in routing.parts[1]] == [(ROWS - 1, [[[7, 7], [7, 7]]])]
    pieces = routing.pieces(0, ROWS)
    assert [len(piece) for piece in pieces] == [ROWS - 1, 1]
    assert np.shares_memory(pieces[0], array)
    assert not any(piece.flags.writeable for piece in pieces)


def test_the_whole_is_made_when_it_is_read_and_once() -> None:
    repaired = node()
    repaired.repair_routing(3, experts(1, 7))
    whole = repaired.routed_experts
    assert whole is not None
    assert repaired.routed_experts is whole
    assert not whole.flags.writeable
    assert whole[:, 0, 0].tolist() == [1] * 3 + [7] + [1] * (ROWS - 4)
    assert repaired.routing is not None
    assert repaired.routing.parts == (whole, ())


def test_whoever_took_the_routing_keeps_what_it_saw() -> None:
    repaired = node()
    first, array = repaired.routing, repaired.routed_experts
    repaired.repair_routing(0, experts(1, 7))
    second = repaired.routing
    repaired.repair_routing(0, experts(1, 9))
    assert first is not None
    assert second is not None
    assert array is not None
    seen = [found[0, 0, 0] for found in (array, first.whole(), second.whole(), repaired.routed_experts)]
    assert seen == [1, 1, 7, 9]


def test_a_repair_is_a_copy_of_what_it_was_given() -> None:
    repaired, row = node(), experts(1, 7)
    repaired.repair_routing(5, row)
    row[:] = 9
    assert repaired.routed_experts is not None
    assert repaired.routed_experts[5, 0, 0] == 7


def test_no_rows_repair_nothing() -> None:
    repaired = node()
    before = repaired.routing
    repaired.repair_routing(ROWS, experts(0))
    assert repaired.routing is before


def test_many_repairs_are_not_kept_beside_the_array() -> None:
    repaired = node()
    for row in range(ROWS):
        repaired.repair_routing(row, experts(1, row))
        assert repaired.routing is not None
        assert len(repaired.routing.parts[1]) <= 16
    assert repaired.routed_experts is not None
    assert repaired.routed_experts[:, 1, 1].tolist() == list(range(ROWS))


@pytest.mark.parametrize("rows", [ROWS // 8 + 1, ROWS])
def test_a_repair_of_much_is_not_kept_beside_the_array(rows: int) -> None:
    repaired = node()
    repaired.repair_routing(0, experts(rows, 7))
    assert repaired.routing is not None
    assert repaired.routing.parts[1] == ()


def test_a_wide_repair_widens_the_whole_and_not_its_pieces() -> None:
    repaired = node()
    repaired.repair_routing(1, np.full((1, 2, 2), 300))
    routing = repaired.routing
    assert routing is not None
    assert (routing.dtype, routing.nbytes, repaired.array_bytes) == (np.uint16, 8 * ROWS, 8 * ROWS)
    assert [piece.dtype for piece in routing.pieces(0, 3)] == [np.uint8, np.uint16, np.uint8]
    assert routing.whole().dtype == np.uint16


def test_a_repaired_node_can_be_copied_and_pickled() -> None:
    repaired = node()
    repaired.repair_routing(1, np.full((1, 2, 2), 300))
    others = [copy.copy(repaired), copy.deepcopy(repaired), pickle.loads(pickle.dumps(repaired))]
    others[0].drop_arrays()
    assert (others[0].array_bytes, repaired.array_bytes) == (0, 8 * ROWS)
    for other in others[1:]:
        assert_array_equal(other.routed_experts, repaired.routed_experts)
        other.repair_routing(1, experts(1, 5))
        assert other.routed_experts is not None
        assert other.routed_experts[1, 0, 0] == 5
    assert repaired.routed_experts is not None
    assert repaired.routed_experts[1, 0, 0] == 300


def test_readers_beside_the_writer_lose_no_repair() -> None:
    repaired, done = node(), threading.Event()
    wrong: list[int] = []

    def read() -> None:
        while not done.is_set():
            whole = repaired.routed_experts
            assert whole is not None
            if not 1 <= len(set(whole[:, 0, 0].tolist())) <= 2 or repaired.array_bytes != 4 * ROWS:
                wrong.append(1)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(20):
            for row in range(ROWS):
                repaired.repair_routing(row, experts(1, 2))
            assert repaired.routed_experts is not None
            assert (repaired.routed_experts == 2).all()
            repaired.routed_experts = experts()
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert not wrong


@given(
    repairs=st.lists(st.tuples(st.integers(0, 49), st.integers(1, 4)), max_size=6),
    wide=st.booleans(),
    start=st.integers(0, 50),
    length=st.integers(0, 50),
)
def test_pieces_are_the_rows_of_the_whole(
    repairs: list[tuple[int, int]], wide: bool, start: int, length: int
) -> None:
    array = np.arange(200, dtype=np.uint8).reshape(50, 2, 2)
    expected = array.astype(np.uint16)
    routing = Routing(array)
    for number, (first, count) in enumerate(repairs, 200):
        rows = np.full((min(count, 50 - first), 2, 2), number * (2 if wide else 1), np.uint16)
        routing = routing.repaired(first, rows.astype(np.uint16 if wide else np.uint8))
        expected[first : first + len(rows)] = rows
    stop = min(start + length, 50)
    pieces = routing.pieces(start, stop)
    assert all(len(piece) for piece in pieces)
    found = np.concatenate([np.zeros((0, 2, 2), np.uint8), *pieces])
    assert_array_equal(found, expected[start:stop])
    assert_array_equal(routing.whole(), expected)
    assert_array_equal(np.concatenate([expected[:0], *routing.pieces(start, stop)]), expected[start:stop])
