"""Nodes: lengths fit, the streamed part never changes, the training arrays may."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest

from env_worker.domain import TRAINING_ARRAY_FIELDS, Message, Node, SamplingMask, TopLogprobs

ASKED = Message.user("hi")
SAID = Message.assistant("ho")
MASK = SamplingMask(np.array([1, 2]), np.array([1, 1]))
HEAD = TopLogprobs(np.array([1, 2]), np.array([-1.0, -2.0]), np.array([1, 1]))


def full_node() -> Node:
    return Node(
        SAID, [7, 8, 9], parent=3, sampled=True, mask=[False, True, True], is_content=[0, 1, 0],
        logprobs=[-1, -2], created_at=5.0, sampling_mask=MASK, top_logprobs=HEAD,
        routed_experts=np.arange(12, dtype=np.uint8).reshape(3, 2, 2),
    )  # fmt: skip


def test_fields_have_their_dtypes() -> None:
    node = full_node()
    streams = (node.token_ids, node.mask, node.is_content, node.logprobs)
    assert [array.dtype for array in streams] == [np.int32, np.bool_, np.bool_, np.float32]
    assert not any(array.flags.writeable for array in streams)
    assert (node.parent, node.sampled, node.created_at) == (3, True, 5.0)
    assert node.array_bytes == 12 + MASK.nbytes + HEAD.nbytes


def test_mask_defaults_to_all_or_nothing() -> None:
    assert Node(ASKED, [1, 2]).mask.tolist() == [False, False]
    assert Node(SAID, [1, 2], sampled=True, logprobs=[0, 0]).mask.tolist() == [True, True]
    unscored = Node(SAID, [1, 2], sampled=True)
    assert (unscored.sampled_tokens, len(unscored.logprobs)) == (2, 0)
    bare = Node(ASKED)
    assert (len(bare.token_ids), len(bare.mask), len(bare.is_content), len(bare.logprobs)) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"mask": [True]}, "mask has length 1, expected 2"),
        ({"is_content": [True]}, "is_content has length 1, expected 2"),
        ({"logprobs": [-1]}, "logprobs has length 1, expected 2"),
        ({"sampled": False, "mask": [True, True]}, "marks 2 tokens as sampled, expected 0"),
        ({"routed_experts": np.zeros((3, 1, 1), np.uint8)}, "has shape (3, 1, 1), expected (2"),
        ({"mask": [True, False], "logprobs": [0], "sampling_mask": MASK}, "counts has length 2, expected 1"),
        ({"mask": [True, False], "logprobs": [0], "top_logprobs": HEAD}, "counts has length 2, expected 1"),
        ({"tools_json": "{}"}, "tools_json holds a JSON dict, expected an array"),
        ({"created_at": float("nan")}, "created_at is nan"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(fields: dict[str, Any], reason: str) -> None:
    full: dict[str, Any] = {"sampled": True, "logprobs": [-1, -1], **fields}
    with pytest.raises(ValueError, match=re.escape(reason)):
        Node(SAID, [1, 2], **full)


def test_wrong_types_are_refused_where_they_are_written() -> None:
    with pytest.raises(TypeError, match="message is of type str, expected Message"):
        Node("hi")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="top_logprobs is of type SamplingMask, expected TopLogprobs"):
        full_node().top_logprobs = MASK  # type: ignore[assignment]


def test_the_streamed_part_cannot_change() -> None:
    node = full_node()
    for name in ("message", "token_ids", "mask", "logprobs", "parent"):
        with pytest.raises(AttributeError, match=f"'{name}' is streamed"):
            setattr(node, name, None)


def test_arrays_can_be_set_and_dropped() -> None:
    node = full_node()
    with pytest.raises(ValueError, match="routed_experts has shape"):
        node.routed_experts = np.zeros((1, 1, 1), np.uint8)
    node.routed_experts = np.zeros((3, 1, 1), np.uint16)
    assert node.routed_experts.nbytes == 6
    node.drop_arrays()
    assert [getattr(node, name) for name in TRAINING_ARRAY_FIELDS] == [None, None, None]
    assert node.array_bytes == 0


def test_repair_binds_a_new_array() -> None:
    node = full_node()
    before = node.routed_experts
    assert before is not None
    node.repair_routing(2, np.full((2, 2), 99))
    after = node.routed_experts
    assert after is not None
    assert (before[2].tolist(), after[2].tolist()) == ([[8, 9], [10, 11]], [[99, 99], [99, 99]])
    assert (after[:2] == before[:2]).all()
    assert after.dtype == np.uint8


def test_repair_widens_where_an_id_needs_it() -> None:
    node = full_node()
    node.repair_routing(0, np.full((2, 2, 2), 300, np.uint16))
    assert node.routed_experts is not None
    assert node.routed_experts.dtype == np.uint16
    assert node.routed_experts[:, 0, 0].tolist() == [300, 300, 8]


@pytest.mark.parametrize(
    ("row", "shape"), [(-1, (2, 2)), (3, (2, 2)), (2, (2, 2, 2)), (0, (2, 3)), (0, (1,)), (0, (1, 3, 2))]
)
def test_repair_outside_the_array_is_refused(row: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="does not fit routed_experts of shape"):
        full_node().repair_routing(row, np.zeros(shape, np.uint8))
    with pytest.raises(ValueError, match="has no routed_experts"):
        Node(ASKED, [1]).repair_routing(row, np.zeros(shape, np.uint8))


def test_holes_are_mended_and_cut_and_dropped_with_the_arrays() -> None:
    node = Node(ASKED, holes={"routed_experts": "\ud800" + "x" * 600})
    assert node.holes == {"routed_experts": "?" + "x" * 499}
    with pytest.raises(TypeError):
        node.holes["sampling_mask"] = "none"  # type: ignore[index]
    given = {"sampling_mask": "none"}
    node.holes = given
    given.clear()
    assert node.holes == {"sampling_mask": "none"}
    node.drop_arrays()
    assert node.holes == Node(ASKED).holes == {}


def test_nodes_can_be_copied_and_pickled() -> None:
    node = full_node()
    node.holes = {"logprobs": "NaN at token 1"}
    for other in (copy.deepcopy(node), pickle.loads(pickle.dumps(node))):
        assert (other.message, other.token_ids.tolist(), other.parent) == (SAID, [7, 8, 9], 3)
        assert other.array_bytes == node.array_bytes
        assert other.holes == node.holes == {"logprobs": "NaN at token 1"}
    assert repr(node) == f"Node(assistant, parent=3, tokens=3, sampled=2, array_bytes={node.array_bytes})"
