"""A scripted engine: an HTTP server that speaks as vLLM, SGLang or OpenAI do, by version.

Its model is deterministic, and each value it answers tells its position, so that a test can check what became
of it: see `expected_ids`, `expected_logprobs`, `expected_heads`, `expected_mask`, `expected_routing` and
`expected_versions`. What it says, which edge cases it shows and how requests fail is the test's to choose:
`Reply`, `Quirk`, `Fault`.
"""

from tests.engine.faults import Fault, held, redirected, refused, slow
from tests.engine.log import Record
from tests.engine.profiles import (
    OPENAI,
    PROFILES,
    SGLANG_0_5_23,
    VLLM_0_13,
    VLLM_0_21,
    VLLM_0_22,
    VLLM_0_28,
    VLLM_0_33,
    Profile,
    Served,
)
from tests.engine.quirks import Quirk
from tests.engine.replies import Asked, Policy, Reply, by_turn, echo
from tests.engine.server import ScriptedEngine
from tests.engine.tokens import IM_END, IM_START, VOCABULARY, decode, encode, expected_ids
from tests.engine.values import (
    FLOOR,
    expected_heads,
    expected_logprobs,
    expected_mask,
    expected_routing,
    expected_versions,
)

__all__ = [
    "FLOOR",
    "IM_END",
    "IM_START",
    "OPENAI",
    "PROFILES",
    "SGLANG_0_5_23",
    "VLLM_0_13",
    "VLLM_0_21",
    "VLLM_0_22",
    "VLLM_0_28",
    "VLLM_0_33",
    "VOCABULARY",
    "Asked",
    "Fault",
    "Policy",
    "Profile",
    "Quirk",
    "Record",
    "Reply",
    "ScriptedEngine",
    "Served",
    "by_turn",
    "decode",
    "echo",
    "encode",
    "expected_heads",
    "expected_ids",
    "expected_logprobs",
    "expected_mask",
    "expected_routing",
    "expected_versions",
    "held",
    "redirected",
    "refused",
    "slow",
]
