"""Refusals, and the one table from reason to code."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from env_broker import status
from env_broker.status import DETAILS_KEY, Refusal, error_reason, short

ERRORS = Path(__file__).resolve().parents[3] / "protos/envtrio/v1/errors.proto"


def test_every_reason_comes_with_the_code_that_errors_proto_names() -> None:
    documented = re.findall(
        r"  // ([A-Z_]+): (?:(?!ERROR_REASON).)*?ERROR_REASON_(\w+) =", ERRORS.read_text(), re.S
    )
    codes = {reason: code for code, reason in documented}
    assert len(codes) > 30
    assert {reason: code.name for reason, code in status._CODES.items()} == {
        reason: codes[reason] for reason in status._CODES
    }


def test_the_caller_is_told_what_the_log_need_not_repeat_for_each_run() -> None:
    refusal = Refusal("WORKER_LOST", "worker w was lost", detail="its last lines: up")
    assert (refusal.brief, refusal.message) == ("worker w was lost", "worker w was lost (its last lines: up)")
    assert Refusal("WORKER_LOST", "worker w was lost").message == "worker w was lost"
    assert len(Refusal("WORKER_LOST", "x", detail="y" * 10_000).message) <= 1_500


def test_a_refusal_carries_its_details() -> None:
    refusal = Refusal("QUEUE_FULL", "2 runs wait, the limit is 2", retry_after=1.5, limit=2)
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    ((key, value),) = refusal.trailing_metadata()
    assert key == DETAILS_KEY
    sent = status_pb2.Status.FromString(value)
    assert (sent.code, sent.message) == (8, "2 runs wait, the limit is 2")
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert sent.details[0].Unpack(info)
    assert sent.details[1].Unpack(retry)
    assert (info.domain, info.reason, dict(info.metadata)) == ("envtrio", "QUEUE_FULL", {"limit": "2"})
    assert retry.retry_delay.ToTimedelta().total_seconds() == 1.5
    assert error_reason(refusal.trailing_metadata()) == "QUEUE_FULL"


def test_a_reason_has_one_code() -> None:
    with pytest.raises(KeyError):
        Refusal("NO_SUCH_REASON", "x")


def test_long_messages_are_cut_at_a_character() -> None:
    refusal = Refusal("INTERNAL", "ö" * 4000, value="ö" * 4000)
    assert len(refusal.message.encode()) <= 1500
    assert set(refusal.message) == {"ö"}
    assert sum(len(value) for _, value in refusal.trailing_metadata()) < 4096


def test_what_text_cannot_encode_is_replaced() -> None:
    assert Refusal("INTERNAL", "a\udc80b").message == "a?b"


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("some-key", "text"),),
        ((DETAILS_KEY, "text"),),
        ((DETAILS_KEY, b"\xff\xff"),),
        ((DETAILS_KEY, status_pb2.Status(code=8).SerializeToString()),),
    ],
)
def test_a_status_that_is_not_ours_has_no_reason(metadata: tuple[tuple[str, str | bytes], ...]) -> None:
    assert error_reason(metadata) is None


def test_a_foreign_domain_is_not_ours() -> None:
    foreign = status_pb2.Status(code=8)
    foreign.details.add().Pack(error_details_pb2.ErrorInfo(domain="example.com", reason="QUEUE_FULL"))
    assert error_reason(((DETAILS_KEY, foreign.SerializeToString()),)) is None


def test_ids_are_shown_by_their_first_digits() -> None:
    assert short("0123456789abcdef" * 2) == "01234567"
