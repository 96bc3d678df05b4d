"""What `env-client run` says of its episodes at the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from envtrio.v1 import episode_pb2

from env_client.tally import UNKNOWN_KIND, Tally


def episode(*incomplete: str) -> episode_pb2.Episode:
    made = episode_pb2.Episode(head=episode_pb2.EpisodeHead(ok=True))
    trace = made.traces.add()
    if incomplete:
        said = {name: {"turns": 1, "first_node": 1, "reason": "none came"} for name in incomplete}
        trace.info_json["incomplete"] = json.dumps(said)
    return made


def test_what_engines_did_not_give_is_counted_by_episode() -> None:
    tally = Tally(3)
    for found in (episode("routed_experts", "token_ids"), episode("token_ids"), episode()):
        tally.add_episode("kind", found)
    assert tally.incomplete == {"routed_experts": 1, "token_ids": 2}
    assert "incomplete: token_ids in 2 of 3 outcomes: none came" in tally.summary().splitlines()


def test_the_first_reason_of_each_field_is_told_in_one_bounded_line() -> None:
    tally = Tally(4)
    said: list[Any] = [
        {"token_ids": {"turns": 1}, "masks": 7},
        {"token_ids": {"reason": "first\n\x1b[2J" + "x" * 1_000}},
        {"token_ids": {"reason": "second"}},
        {"masks\n": {"reason": 7}},
    ]
    for each in said:
        found = episode()
        found.traces[0].info_json["incomplete"] = json.dumps(each)
        tally.add_episode("kind", found)
    lines = [line for line in tally.summary().splitlines() if line.startswith("incomplete")]
    assert lines == [
        "incomplete: masks in 1 of 4 outcomes: info.incomplete says more",
        "incomplete: masks  in 1 of 4 outcomes: info.incomplete says more",
        f"incomplete: token_ids in 3 of 4 outcomes: first  [2J{'x' * 290}...",
    ]


@pytest.mark.parametrize(
    ("info", "counted"),
    [
        ('[{"arrays": {}, "incomplete": {"routed_experts": "none came"}}]', 0),
        ('[{"arrays": {}}, {"arrays": {"routed_experts": {}}}]', 1),
        ("[7]", 0),
        ('"my own"', 0),
        ("[]", 0),
    ],
)
def test_references_that_hold_nothing_are_not_counted(info: str, counted: int) -> None:
    tally, found = Tally(1), episode()
    found.traces[0].info_json["training_arrays"] = info
    tally.add_episode("kind", found)
    assert tally.referring == counted


def test_runs_that_named_no_environment_count_to_the_only_one_where_it_is_known() -> None:
    tally = Tally(3)
    tally.add_episode("maths", episode())
    tally.add_exception(UNKNOWN_KIND, ValueError("x"))
    tally.add_exception("other", ValueError("x"))
    kinds = [line.split()[:2] for line in tally.summary().splitlines()]
    assert ["(unknown)", "1"] in kinds
    tally.only_environment = "maths"
    kinds = [line.split()[:2] for line in tally.summary().splitlines()]
    assert ["maths", "2"] in kinds
    assert ["other", "1"] in kinds
    assert not any("(unknown)" in line for line in kinds)


def test_what_an_environment_has_put_there_is_not_counted() -> None:
    tally = Tally(1)
    other = episode()
    other.traces[0].info_json["incomplete"] = '"my own"'
    tally.add_episode("kind", other)
    assert "incomplete" not in tally.summary()
