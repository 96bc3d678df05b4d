"""The oracle's promises about streams: each passes on a good history and fails on every kind of bad one."""

from __future__ import annotations

import re

import pytest
from envtrio.v1 import delta_pb2, episode_pb2

from tests.helpers import oracle, oracle_streams
from tests.helpers.history import Ended, Passed
from tests.helpers.oracle import GuaranteeBroken
from tests.unit.kit.builder import (
    GOOD_STREAM,
    RUN,
    closing,
    counted,
    growth,
    message,
    opening,
    passed,
    reply,
    run_history,
    together,
)


@pytest.mark.parametrize(
    "stream",
    [
        GOOD_STREAM,
        (),
        (b"".join(GOOD_STREAM),),  # joined by laying bytes end to end
        (message(opening()), message(opening(discard=True)), message(growth(1))),
        (message(opening()), message(closing()), message(opening())),
        (message(opening(), opening("u")), message(growth(1, "u"), growth(1))),
    ],
)
def test_ordered_without_gaps_holds(stream: tuple[bytes, ...]) -> None:
    oracle.ordered_without_gaps(passed(*stream))


@pytest.mark.parametrize(
    ("stream", "what"),
    [
        ((message(opening()), message(growth(2))), "seq 2 where 1 was due"),
        ((message(opening()), message(growth(0))), "seq 0 where 1 was due"),
        ((message(opening()), message(growth(1)), message(growth(1))), "seq 1 where 2 was due"),
        ((message(growth(1)),), "seq 1 where 0 was due"),
        ((message(growth(0)),), "no header"),
        (
            (message(opening(), delta_pb2.TraceDelta(trace_id="t", seq=1, append=opening().append)),),
            "a second header",
        ),
        ((message(opening(discard=True)),), "was not open"),
        ((message(closing()),), "was not open"),
        ((message(opening(), closing(), growth(1)),), "seq 1 where 0 was due"),
        (
            (message(opening(), delta_pb2.TraceDelta(trace_id="t", seq=1, discard=True)),),
            "seq 1 where 0 was due",
        ),
        (
            (
                message(
                    opening(), delta_pb2.TraceDelta(trace_id="t", discard=True, pending=delta_pb2.Pending())
                ),
            ),
            "pending",
        ),
        ((message(delta_pb2.TraceDelta(trace_id="u", append=opening("t").append)),), "has the header of 't'"),
    ],
)
def test_ordered_without_gaps_broken(stream: tuple[bytes, ...], what: str) -> None:
    with pytest.raises(GuaranteeBroken, match=rf"broke OrderedWithoutGaps: run 01234567: .*{what}"):
        oracle.ordered_without_gaps(passed(*stream))


def test_reply_once_and_last_holds() -> None:
    oracle.reply_once_and_last(run_history())
    oracle.reply_once_and_last(run_history(code="CANCELLED"))
    oracle.reply_once_and_last(run_history(code="UNAVAILABLE", stream=GOOD_STREAM))
    oracle.reply_once_and_last(run_history(code="INVALID_ARGUMENT", stream=()))


@pytest.mark.parametrize(
    ("stream", "what"),
    [
        ((*GOOD_STREAM, GOOD_STREAM[1]), "2 messages had a reply"),
        ((GOOD_STREAM[1], GOOD_STREAM[0]), "1 messages came behind the reply"),
        (GOOD_STREAM[:1], "no reply came"),
        ((), "no reply came"),
    ],
)
def test_reply_once_and_last_broken(stream: tuple[bytes, ...], what: str) -> None:
    with pytest.raises(GuaranteeBroken, match=f"broke ReplyOnceAndLast: .*{what}"):
        oracle.reply_once_and_last(run_history(stream=stream))


def test_reply_once_and_last_broken_behind_the_status() -> None:
    history = run_history(code="CANCELLED")
    history.note(Passed, RUN, hop="client", data=GOOD_STREAM[0])
    with pytest.raises(GuaranteeBroken, match="behind the status"):
        oracle.reply_once_and_last(history)


def test_each_thing_once_holds() -> None:
    oracle.each_thing_once(run_history())
    oracle.each_thing_once(run_history(code="CANCELLED"))
    anew = reply(counted(deltas=1, nodes=1, tokens=1))
    oracle.each_thing_once(passed(message(opening(), opening(discard=True), reply=anew)))
    oracle.each_thing_once(passed(message(opening(), closing(), reply=reply())))


@pytest.mark.parametrize(
    ("stream", "what"),
    [
        ((message(opening(), growth(1, nodes=2), reply=reply(counted())),), "3 nodes"),
        ((message(opening(nodes=0), growth(1), reply=reply(counted())),), "1 nodes"),
        ((message(opening(nodes=2), reply=reply(counted())),), "1 deltas"),
        ((message(opening(), growth(1), reply=reply(counted(tokens=3))),), "2 tokens"),
        ((message(opening(), opening("u"), growth(1), reply=reply(counted())),), "'u'"),
        ((message(opening(), growth(1), reply=reply(counted(), counted("u"))),), "'u'"),
        ((message(opening(), growth(1), reply=reply(counted(), counted())),), "counts"),
        ((message(opening(), closing(), reply=reply(counted())),), "counts"),
    ],
)
def test_each_thing_once_broken(stream: tuple[bytes, ...], what: str) -> None:
    with pytest.raises(GuaranteeBroken, match=f"broke EachThingOnce: .*{what}"):
        oracle.each_thing_once(passed(*stream))


def test_relayed_verbatim_holds() -> None:
    sent = passed(*GOOD_STREAM, hop="worker")
    oracle.relayed_verbatim(together(sent, run_history()))
    oracle.relayed_verbatim(together(sent, run_history(stream=(b"".join(GOOD_STREAM),))))
    oracle.relayed_verbatim(together(sent, run_history(code="CANCELLED")))


@pytest.mark.parametrize(
    ("code", "stream"),
    [
        ("OK", GOOD_STREAM[:1]),
        ("OK", (*GOOD_STREAM, GOOD_STREAM[1])),
        ("OK", GOOD_STREAM[::-1]),
        ("CANCELLED", GOOD_STREAM[1:]),
        ("CANCELLED", (message(opening("u")),)),
    ],
)
def test_relayed_verbatim_broken(code: str, stream: tuple[bytes, ...]) -> None:
    sent = passed(*GOOD_STREAM, hop="worker")
    with pytest.raises(GuaranteeBroken, match="broke RelayedVerbatim"):
        oracle.relayed_verbatim(together(sent, run_history(code=code, stream=stream)))


def test_no_training_array_on_the_wire() -> None:
    oracle.no_training_array_on_the_wire(run_history())
    node = episode_pb2.Node.FromString(b"\xa2\x01\x03abc")  # field 20, which is reserved
    delta = delta_pb2.TraceDelta(trace_id="t", append=episode_pb2.Trace(nodes=[episode_pb2.Node(), node]))
    with pytest.raises(GuaranteeBroken, match=re.escape("deltas[0].append.nodes[1] has an unknown field 20")):
        oracle.no_training_array_on_the_wire(passed(message(delta)))


def test_no_training_array_in_a_map_entry() -> None:
    entry = episode_pb2.Reward.FromString(b"\xa2\x01\x03abc")
    delta = delta_pb2.TraceDelta(trace_id="t", append=episode_pb2.Trace(rewards={"score": entry}))
    with pytest.raises(GuaranteeBroken, match="unknown field 20"):
        oracle.no_training_array_on_the_wire(passed(message(delta)))


def test_no_field_carries_an_array_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle_streams, "ARRAY_FIELDS", frozenset({"logprobs"}))
    node = episode_pb2.Node(logprobs=bytes(4))
    delta = delta_pb2.TraceDelta(trace_id="t", append=episode_pb2.Trace(nodes=[node]))
    with pytest.raises(GuaranteeBroken, match=re.escape("nodes[0].logprobs crossed")):
        oracle.no_training_array_on_the_wire(passed(message(delta)))


def test_promises_hold_judges_the_worker_hop_too() -> None:
    good = run_history()
    oracle.promises_hold(good, asked=1)
    with pytest.raises(GuaranteeBroken, match="2 runs should have been asked for, 1 were"):
        oracle.promises_hold(good, asked=2)
    with pytest.raises(GuaranteeBroken, match="RelayedVerbatim"):
        oracle.promises_hold(together(good, passed(GOOD_STREAM[1], hop="worker")))
    good.note(Ended, RUN, code="OK")
    with pytest.raises(GuaranteeBroken, match="SettledOnce"):
        oracle.promises_hold(good)
