"""How a trace's arrays lie in a segment: once each, aligned, in as few extents as can be."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import pytest

from env_worker.arrays.branch import StoredArray
from env_worker.arrays.column import STEP_BYTES
from env_worker.arrays.layout import HEADER_BYTES, TraceLayout
from env_worker.domain import TRAINING_ARRAY_FIELDS, Message, SamplingMask, TopLogprobs, Trace
from tests.helpers.array_episodes import put_into

if TYPE_CHECKING:
    from env_worker.arrays.branch import BranchLayout
    from env_worker.arrays.cut import Cut

ROUTING = ["routed_experts"]


def experts(tokens: int, layers: int = 2, top_k: int = 2, dtype: str = "u1") -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(tokens)
    return rng.integers(1, 256, (tokens, layers, top_k)).astype(dtype)


def add(trace: Trace, parent: int | None, array: np.ndarray[Any, Any] | None = None, tokens: int = 0) -> int:
    """Add a node with this routing, or without any."""
    count = tokens if array is None else len(array)
    return trace.add_node(Message("user"), range(count), parent=parent, routed_experts=array)


def add_sampled(trace: Trace, parent: int | None, counts: list[int], mask: list[bool] | None = None) -> int:
    """Add a sampled node with all three fields."""
    total, tokens = sum(counts), len(counts) if mask is None else len(mask)
    ids = np.arange(total, dtype=np.int32)
    return trace.add_node(
        Message("assistant"),
        range(tokens),
        parent=parent,
        sampled=True,
        mask=mask,
        routed_experts=experts(tokens),
        sampling_mask=SamplingMask(ids, np.array(counts, np.int32)),
        top_logprobs=TopLogprobs(ids, -ids.astype(np.float32), np.array(counts, np.int32)),
    )


class Written:
    """A written layout, and how much of its segment was read."""

    def __init__(self, trace: Trace, fields: list[str] | None = None) -> None:
        self.layout = TraceLayout.of(trace, TRAINING_ARRAY_FIELDS if fields is None else fields)
        self.bytes = bytearray(self.layout.size)
        self.layout.write(put_into(self.bytes))
        self.reads: list[int] = []

    def read(self, offset: int, length: int) -> bytes:
        """As the store gives it."""
        self.reads.append(length)
        return bytes(self.bytes[offset : offset + length])

    def cut(self, branch: int, fields: list[str], start: int, end: int) -> Cut:
        """Of one of the branches."""
        return self.branch(branch).cut(fields, start, end, self.read)

    def branch(self, index: int) -> BranchLayout:
        """One of the branches."""
        return self.layout.branches[index]

    def body(self, cut: Cut) -> bytes:
        """Its bytes, end to end."""
        extents = (extent for array in cut.arrays for extent in array.extents)
        return b"".join(bytes(self.bytes[offset : offset + length]) for offset, length in extents)


def test_a_shared_prefix_is_stored_once_and_each_branch_is_few_extents() -> None:
    trace = Trace("trace-0")
    root = add(trace, None, experts(100))
    middle = add(trace, root, experts(50))
    leaves = [add(trace, middle, experts(tokens)) for tokens in (3, 4, 5)]
    written = Written(trace, ROUTING)
    assert written.layout.size == HEADER_BYTES + 4 * (100 + 50 + 3 + 4 + 5)
    extents = [written.cut(index, ROUTING, 0, 150 + 3 + index).arrays[0].extents for index in range(3)]
    assert [len(found) for found in extents] == [1, 2, 2]
    assert {found[0].offset for found in extents} == {HEADER_BYTES}
    assert [branch.leaf for branch in written.layout.branches] == leaves


def test_arrays_begin_at_multiples_of_64_bytes_behind_the_header() -> None:
    trace = Trace("trace-0")
    add_sampled(trace, None, [1, 2, 0])
    written = Written(trace)
    arrays = written.cut(0, list(TRAINING_ARRAY_FIELDS), 0, 3).arrays
    assert [array.name for array in arrays] == [
        "routed_experts",
        "sampling_mask.ids",
        "sampling_mask.counts",
        "top_logprobs.ids",
        "top_logprobs.logprobs",
        "top_logprobs.counts",
    ]
    offsets = [array.extents[0].offset for array in arrays]
    assert offsets == [HEADER_BYTES + 64 * index for index in range(6)]


def test_a_branch_says_what_it_has() -> None:
    trace = Trace("trace-0")
    add_sampled(trace, add(trace, None, experts(4)), [1, 3], [True, False, True])
    branch = Written(trace).branch(0)
    assert (branch.leaf, branch.tokens, branch.sampled, branch.incomplete) == (1, 7, 2, {})
    assert branch.arrays == (
        StoredArray("routed_experts", "u1", (7, 2, 2), 28),
        StoredArray("sampling_mask.ids", "<i4", (4,), 16),
        StoredArray("sampling_mask.counts", "<i4", (2,), 8),
        StoredArray("top_logprobs.ids", "<i4", (4,), 16),
        StoredArray("top_logprobs.logprobs", "<f4", (4,), 16),
        StoredArray("top_logprobs.counts", "<i4", (2,), 8),
    )


def test_one_wide_node_makes_the_whole_trace_wide() -> None:
    trace = Trace("trace-0")
    narrow = add(trace, None, experts(2))
    add(trace, narrow, experts(3))
    add(trace, None, experts(2, dtype="u2") * 200)
    written = Written(trace, ROUTING)
    assert [branch.arrays[0].dtype for branch in written.layout.branches] == ["<u2", "<u2"]
    wanted = np.concatenate([experts(2), experts(3)]).astype("<u2")
    assert written.body(written.cut(0, ROUTING, 0, 5)) == wanted.tobytes()


def test_branches_of_other_row_shapes_lie_side_by_side() -> None:
    trace = Trace("trace-0")
    root = add(trace, None, tokens=0)
    arrays = [experts(3, layers=2, top_k=3), experts(5, layers=4, top_k=2)]
    for array in arrays:
        add(trace, root, array)
    written = Written(trace, ROUTING)
    for index, array in enumerate(arrays):
        cut = written.cut(index, ROUTING, 1, 3)
        assert cut.arrays[0].shape == (2, *array.shape[1:])
        assert written.body(cut) == array[1:3].tobytes()


def test_what_no_complete_branch_needs_is_not_stored() -> None:
    trace = Trace("trace-0")
    root = add(trace, None, experts(10))
    add(trace, add(trace, root, experts(1000)), tokens=7)
    add(trace, root, experts(3))
    written = Written(trace, ROUTING)
    hole = "node 2 of 7 tokens has no routed_experts"
    assert written.layout.size == HEADER_BYTES + 4 * 13
    assert written.layout.incomplete == written.branch(0).incomplete == {"routed_experts": hole}
    assert written.branch(1).incomplete == {}
    with pytest.raises(ValueError, match=f"routed_experts cannot be cut: {hole}"):
        written.cut(0, ROUTING, 0, 1)


def test_the_reason_that_is_counted_is_that_of_the_first_branch() -> None:
    trace = Trace("trace-0")
    add(trace, None, tokens=7)
    add(trace, None, tokens=8)
    add(trace, None, experts(1))
    assert TraceLayout.of(trace, ROUTING).incomplete == {
        "routed_experts": "node 0 of 7 tokens has no routed_experts"
    }


def test_branches_without_tokens_and_traces_without_nodes() -> None:
    trace = Trace("trace-0")
    assert (Written(trace).layout.size, Written(trace).layout.branches) == (HEADER_BYTES, ())
    add(trace, None, tokens=0)
    assert set(Written(trace).branch(0).incomplete) == set(TRAINING_ARRAY_FIELDS)
    add_sampled(trace, None, [1])
    written = Written(trace)
    assert [array.shape for array in written.branch(0).arrays] == [(0, 2, 2), (0,), (0,), (0,), (0,), (0,)]
    cut = written.cut(0, list(TRAINING_ARRAY_FIELDS), 0, 0)
    assert (cut.body_bytes, cut.body_crc32c) == (0, 0)
    assert all(array.extents == () for array in cut.arrays)


def test_strided_arrays_are_stored_in_c_order() -> None:
    array = experts(40, layers=6, top_k=4)[::-2, ::3].transpose(0, 2, 1)
    trace = Trace("trace-0")
    add(trace, None, array)
    written = Written(trace, ROUTING)
    assert written.body(written.cut(0, ROUTING, 0, 20)) == array.tobytes()


def test_of_a_large_node_little_is_read() -> None:
    array = experts(3 * STEP_BYTES // 4 + 5)
    trace = Trace("trace-0")
    add(trace, add(trace, None, array), experts(9))
    written = Written(trace, ROUTING)
    for start, end in [(0, len(array)), (1, len(array) - 1), (STEP_BYTES // 4, len(array) + 3)]:
        written.reads.clear()
        cut = written.cut(0, ROUTING, start, end)
        body = np.concatenate([array, experts(9)])[start:end].tobytes()
        assert written.body(cut) == body
        assert cut.body_crc32c == google_crc32c.value(body)
        assert len(cut.arrays[0].extents) == 1
        assert len(written.reads) <= 2
        assert all(0 < length < STEP_BYTES for length in written.reads)


def test_counts_are_read_of_the_nodes_that_are_cut_only_and_in_pieces() -> None:
    trace, parent = Trace("trace-0"), None
    for _ in range(20):
        parent = add_sampled(trace, parent, [1, 2, 3])
    add_sampled(trace, parent, [1] * 600_000)
    written = Written(trace)
    for start, end in [(0, 60), (3, 57), (0, 600_060)]:
        written.cut(0, ["sampling_mask"], start, end)
    assert written.reads == []
    cut = written.cut(0, ["sampling_mask"], 1, 60 + 300_000)
    assert cut.arrays[0].shape == (20 * 6 - 1 + 300_000,)
    assert max(written.reads) <= 2**20
    assert sum(written.reads) < 2 * 4 * 600_000


def test_fields_come_in_the_order_asked_for() -> None:
    trace = Trace("trace-0")
    add_sampled(trace, None, [2, 1])
    written = Written(trace, ["top_logprobs", "routed_experts"])
    assert [array.name for array in written.cut(0, ["routed_experts", "top_logprobs"], 0, 2).arrays] == [
        "routed_experts",
        "top_logprobs.ids",
        "top_logprobs.logprobs",
        "top_logprobs.counts",
    ]
    assert written.cut(0, [], 0, 2).arrays == ()


def test_the_arrays_are_let_go_of_when_they_are_written() -> None:
    trace = Trace("trace-0")
    add_sampled(trace, None, [2, 1])
    node = trace.nodes[0]
    assert node.routed_experts is not None
    assert node.sampling_mask is not None
    held = [weakref.ref(node.routed_experts), weakref.ref(node.sampling_mask.ids)]
    layout = TraceLayout.of(trace, TRAINING_ARRAY_FIELDS)
    del node
    trace.drop_arrays()
    assert all(reference() is not None for reference in held)
    layout.write(put_into(bytearray(layout.size)))
    assert all(reference() is None for reference in held)


def test_a_layout_is_written_once() -> None:
    trace = Trace("trace-0")
    add(trace, None, experts(3))
    layout = TraceLayout.of(trace, ROUTING)
    layout.write(put_into(bytearray(layout.size)))
    with pytest.raises(ValueError, match="written before"):
        layout.write(put_into(bytearray(layout.size)))


def test_a_large_array_is_put_in_pieces_from_where_it_is() -> None:
    """And one that is not in order, or of a narrower dtype, takes no more memory than a piece."""
    trace = Trace("trace-0")
    arrays = [experts(200_000), experts(400_000)[::2], np.broadcast_to(experts(1), (200_000, 2, 2))]
    for array in arrays:
        add(trace, None, array)
    layout = TraceLayout.of(trace, ROUTING)
    pieces: list[tuple[int, bool]] = []

    def put(offset: int, piece: memoryview) -> None:
        pieces.append((len(piece), np.shares_memory(np.frombuffer(piece, np.uint8), arrays[0])))

    tracemalloc.start()
    try:
        layout.write(put)
        assert tracemalloc.get_traced_memory()[1] < 4 * STEP_BYTES
    finally:
        tracemalloc.stop()
    assert sum(size for size, _ in pieces) == 3 * 800_000
    assert max(size for size, _ in pieces) <= STEP_BYTES
    assert [shared for _, shared in pieces] == [True] * 4 + [False] * 8


def test_of_a_node_a_written_layout_holds_few_bytes() -> None:
    """Nodes may hold but one token each, and what is known of them is in no budget."""
    trace, nodes = Trace("trace-0"), 4_000
    for branch in range(4):
        parent = None
        for _ in range(nodes // 4):
            parent = add_sampled(trace, parent, [1])
        assert parent == (branch + 1) * nodes // 4 - 1
    tracemalloc.start()
    try:
        written = Written(trace)
        written.bytes.clear()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 200 * nodes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("fields", "start", "end", "message"),
    [
        (["routed_experts"], 0, 4, r"tokens from 0 to 4 do not lie within the branch's 3 tokens"),
        (["routed_experts"], -1, 2, r"from -1 to 2"),
        (["routed_experts"], 2, 1, r"from 2 to 1"),
        (["experts"], 0, 1, r"'experts' is no field.*routed_experts, sampling_mask, top_logprobs"),
        (["routed_experts", "routed_experts"], 0, 1, r"'routed_experts' was given twice"),
        (["top_logprobs"], 0, 1, r"top_logprobs cannot be cut: absent"),
        (["sampling_mask"], 0, 1, r"sampling_mask cannot be cut: this worker does not keep it"),
    ],
)
def test_what_cannot_be_cut_is_refused(fields: list[str], start: int, end: int, message: str) -> None:
    trace = Trace("trace-0")
    add(trace, None, experts(3))
    written = Written(trace, ["routed_experts", "top_logprobs"])
    with pytest.raises(ValueError, match=message):
        written.cut(0, fields, start, end)


def test_fields_to_keep_must_be_known() -> None:
    with pytest.raises(ValueError, match="'logits' is no field"):
        TraceLayout.of(Trace("trace-0"), ["logits"])


def test_any_byte_that_was_changed_is_found() -> None:
    """Of every array of every branch; what fills the space between them is nobody's."""
    trace = Trace("0")
    root = add_sampled(trace, None, [2, 0, 3])
    for _ in range(2):
        parent = add_sampled(trace, add(trace, root, tokens=0), [1])
        for counts in ([4, 1], [0, 0, 1]):
            add_sampled(trace, parent, counts, [True, False, True, True][: len(counts) + 1])
    written = Written(trace)
    assert written.layout.is_intact(written.read)
    ours = {
        at
        for branch in range(len(written.layout.branches))
        for array in written.cut(branch, list(TRAINING_ARRAY_FIELDS), 0, written.branch(branch).tokens).arrays
        for offset, length in array.extents
        for at in range(offset, offset + length)
    }
    assert len(ours) > 200
    for at in range(HEADER_BYTES, written.layout.size):
        written.bytes[at] ^= 1
        assert written.layout.is_intact(written.read) is (at not in ours), at
        written.bytes[at] ^= 1


def test_all_of_a_large_segment_is_read_once_in_few_pieces() -> None:
    trace = Trace("0")
    parent = add(trace, None, experts(200_000))
    for _ in range(1000):
        add(trace, parent, experts(3))
    written = Written(trace, ROUTING)
    assert written.layout.is_intact(written.read)
    assert sum(written.reads) == 200_000 * 4 + 1000 * 12
    assert len(written.reads) == 4
    assert max(written.reads) == 2**18
    for at in (HEADER_BYTES, HEADER_BYTES + 2**19, written.layout.size - 1):
        written.bytes[at] ^= 0x80
        assert not written.layout.is_intact(written.read)
        written.bytes[at] ^= 0x80
