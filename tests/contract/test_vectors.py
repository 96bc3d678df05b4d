"""The committed vectors are what the worker produces, and what the client assembles."""

from __future__ import annotations

from pathlib import Path

import pytest
from envtrio.v1 import delta_pb2, episode_pb2
from google.protobuf import text_format

from env_client.assembly import EpisodeAssembly
from tests.helpers import oracle
from tests.vectors import generate

FOLDER = Path(generate.__file__).parent
STEMS = sorted(path.stem for path in FOLDER.glob("*.binpb"))
ANEW = "if the wire was meant to change, run `python -m tests.vectors.generate` and say so in the CHANGELOG"


def _type(stem: str) -> type[delta_pb2.DeltaStream] | type[episode_pb2.Episode]:
    return episode_pb2.Episode if stem.endswith(".episode") else delta_pb2.DeltaStream


def _stream(name: str) -> list[bytes]:
    count = len(list(FOLDER.glob(f"{name}.stream-*.binpb")))
    return [(FOLDER / f"{name}.stream-{number}.binpb").read_bytes() for number in range(count)]


@pytest.mark.parametrize("name", generate.VECTORS)
def test_the_worker_still_produces_them_byte_for_byte(name: str) -> None:
    built = generate.build(name)
    assert set(built) == {stem for stem in STEMS if stem.startswith(f"{name}.")}, ANEW
    for stem, message in built.items():
        committed = (FOLDER / f"{stem}.binpb").read_bytes()
        assert message.SerializeToString(deterministic=True) == committed, f"{stem}.binpb differs; {ANEW}"


@pytest.mark.parametrize("stem", STEMS)
def test_the_twins_say_the_same(stem: str) -> None:
    text = (FOLDER / f"{stem}.txtpb").read_text(encoding="utf-8")
    twin = text_format.Parse(text, _type(stem)())
    assert twin == _type(stem).FromString((FOLDER / f"{stem}.binpb").read_bytes())


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("name", generate.VECTORS)
def test_the_client_assembles_them(name: str, joined: bool) -> None:
    stream = _stream(name)
    assembly = EpisodeAssembly()
    for data in [b"".join(stream)] if joined else stream:
        assembly.apply(data)
    wanted = episode_pb2.Episode.FromString((FOLDER / f"{name}.episode.binpb").read_bytes())
    oracle.assembly_equals_source(assembly.finish(), wanted)


def test_they_show_what_their_names_say() -> None:
    assert len(_stream("tiny")) == 1
    assert len(_stream("split")) > 2
    branching = [
        delta for data in _stream("branching") for delta in delta_pb2.DeltaStream.FromString(data).deltas
    ]
    assert {(delta.discard, delta.HasField("append")) for delta in branching} == {
        (False, True),
        (True, True),
        (True, False),
    }
    assert any(delta.HasField("pending") and delta.pending.messages for delta in branching)
    assert any(delta.HasField("pending") and not delta.pending.messages for delta in branching)
