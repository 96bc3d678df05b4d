"""What `import env_worker` gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

import env_worker

NAMES = {
    "ArrayKeeper",
    "array_keeper",
    "EpisodeHook",
    "set_episode_hook",
    "Context",
    "Environment",
    "EngineError",
    "InvalidTaskError",
    "Message",
    "SamplingParams",
    "ToolError",
    "Episode",
    "Trace",
    "Node",
    "SamplingMask",
    "TopLogprobs",
    "TRAINING_ARRAY_FIELDS",
    "LATE_CANCEL_SECONDS",
    "serve",
}


def test_the_public_names() -> None:
    assert set(env_worker.__all__) == NAMES
    assert set(dir(env_worker)) == NAMES
    for name in NAMES:
        assert getattr(env_worker, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = env_worker.no_such_name


def test_importing_it_loads_no_server() -> None:
    code = (
        "import sys, env_worker; env_worker.EpisodeHook, env_worker.Trace, env_worker.set_episode_hook; "
        "env_worker.ArrayKeeper; "
        "assert not {'grpc', 'google.protobuf', 'configargparse'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
