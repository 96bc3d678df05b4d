"""What is cut out of a segment equals, byte for byte, what the nodes of the branch hold end to end."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING
from unittest import mock

import google_crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from env_worker.arrays import branch as branch_module
from env_worker.arrays import column as column_module
from env_worker.arrays.layout import HEADER_BYTES, TraceLayout
from env_worker.domain import TRAINING_ARRAY_FIELDS
from tests.helpers.array_episodes import put_into
from tests.helpers.array_plans import NAMES, TracePlan, expected, is_complete, trace_plans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from env_worker.arrays.branch import BranchLayout
    from env_worker.domain import Trace


class Segment:
    """A written segment that checks how it is read."""

    def __init__(self, layout: TraceLayout) -> None:
        self._bytes = bytearray(b"\xaa" * layout.size)
        layout.write(put_into(self._bytes))
        assert self._bytes[:HEADER_BYTES] == b"\xaa" * HEADER_BYTES

    def read(self, offset: int, length: int) -> bytes:
        """As the store gives it."""
        assert HEADER_BYTES <= offset <= offset + length <= len(self._bytes)
        assert 0 < length <= 2**20
        return bytes(self._bytes[offset : offset + length])


def check_cut(
    trace: Trace, found: BranchLayout, path: Sequence[int], ask: tuple[list[str], int, int], segment: Segment
) -> None:
    fields, start, end = ask
    cut = found.cut(fields, start, end, segment.read)
    wanted = expected(trace, path, fields, start, end)
    body = b""
    assert [array.name for array in cut.arrays] == [name for name, _ in wanted]
    for array, (_, oracle) in zip(cut.arrays, wanted, strict=True):
        data = b"".join(segment.read(offset, length) for offset, length in array.extents)
        assert (array.dtype, array.shape) == (oracle.dtype.str.replace("|", ""), oracle.shape)
        assert array.size_bytes == len(data)
        assert data == oracle.tobytes()
        assert all(left.offset + left.length != right.offset for left, right in pairwise(array.extents))
        body += data
    assert (cut.body_bytes, cut.body_crc32c) == (len(body), google_crc32c.value(body))


@settings(max_examples=80)
@given(plan=trace_plans, step=st.sampled_from([1, 8, 40, 2**18]), data=st.data())
def test_a_cut_is_what_the_nodes_hold_end_to_end(plan: TracePlan, step: int, data: st.DataObject) -> None:
    kept = data.draw(st.permutations(TRAINING_ARRAY_FIELDS)) if plan.nodes else list(TRAINING_ARRAY_FIELDS)
    trace = plan.trace()
    with (
        mock.patch.object(column_module, "STEP_BYTES", step),
        mock.patch.object(branch_module, "_READ_BYTES", 8),
    ):
        layout = TraceLayout.of(trace, kept)
        segment = Segment(layout)
        paths = trace.branches()
        assert len(layout.branches) == len(paths)
        for path, found in zip(paths, layout.branches, strict=True):
            complete = [field for field in kept if is_complete(trace, path, field)]
            assert sorted(found.incomplete) == sorted(set(kept) - set(complete))
            assert [array.name for array in found.arrays] == [
                name for field in complete for name in NAMES[field]
            ]
            tokens = sum(len(trace.nodes[index].token_ids) for index in path)
            assert (found.leaf, found.tokens) == (path[-1], tokens)
            assert found.sampled == sum(trace.nodes[index].sampled_tokens for index in path)
            whole = found.cut(complete, 0, tokens, segment.read).arrays
            assert [(a.name, a.dtype, a.shape, a.size_bytes) for a in whole] == [
                (a.name, a.dtype, a.shape, a.size_bytes) for a in found.arrays
            ]
            for _ in range(3):
                start = data.draw(st.integers(0, tokens))
                end = data.draw(st.integers(start, tokens))
                fields = data.draw(st.permutations(complete)) if complete else []
                asked = fields[: data.draw(st.integers(0, len(fields)))]
                check_cut(trace, found, path, (asked, start, end), segment)
            check_cut(trace, found, path, (complete, 0, tokens), segment)


@settings(max_examples=25)
@given(plan=trace_plans)
def test_every_node_is_stored_once_at_most(plan: TracePlan) -> None:
    trace = plan.trace()
    layout = TraceLayout.of(trace, TRAINING_ARRAY_FIELDS)
    widened = sum(node.routed_experts.size for node in trace.nodes if node.routed_experts is not None)
    assert layout.size <= HEADER_BYTES + trace.array_bytes + widened + 6 * 63
    if not layout.incomplete and not any(plan.wide or plan.repairs for plan in plan.nodes):
        assert layout.size >= HEADER_BYTES + trace.array_bytes
