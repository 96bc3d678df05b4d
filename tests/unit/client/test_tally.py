"""What `env-client run` says of its episodes at the end."""

from __future__ import annotations

import json

from envtrio.v1 import episode_pb2

from env_client.tally import Tally


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
    assert "incomplete: token_ids in 2 of 3 outcomes; info.incomplete says why" in tally.summary()


def test_what_an_environment_has_put_there_is_not_counted() -> None:
    tally = Tally(1)
    other = episode()
    other.traces[0].info_json["incomplete"] = '"my own"'
    tally.add_episode("kind", other)
    assert "incomplete" not in tally.summary()
