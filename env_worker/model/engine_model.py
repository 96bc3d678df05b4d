"""An engine as the model of a run."""

from __future__ import annotations

import hashlib
import random
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.domain import SamplingParams
from env_worker.domain.text import clean_text
from env_worker.model.asking import Asking
from env_worker.model.attribution import place, write_turn
from env_worker.model.base import Turn, check_asked, show_asked
from env_worker.model.dialects import DIALECTS
from env_worker.model.dialects.base import EngineOptions, Question
from env_worker.model.offered import branch
from env_worker.model.retry import Backoff
from env_worker.model.routing_rows import ROUTED_EXPERTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from env_worker.domain import Message, Node, Trace
    from env_worker.model.attribution import Written
    from env_worker.model.engine import Engine

INCOMPLETE: Final = "incomplete"
"""Key of a trace's info: what its engine was asked for and did not give. Maps each such field to `turns` (how
many lack it; no longer those whose rows came with a later one), `first_node` (the answer of the first of
them) and `reason` (that of the first). Nobody else should write to it."""
ENGINE: Final = "engine"
"""Key of a trace's info: the `dialect` that its engine was spoken to in, and the `logprobs_mode` that the
worker's operator told, "" where that was not told."""

_NO_IDS: Final = np.empty(0, np.int32)
_RUN_IDS: Final = random.Random(secrets.randbits(256))
"""Unique, not secret: asking the system for each would cost a call."""


def _new_id() -> str:
    return f"{_RUN_IDS.getrandbits(128):032x}"


@dataclass(frozen=True)
class EngineModel:
    """Asks `engine`, and writes what it answers into the trace: see `ModelClient`. One for each run; cheap,
    and it can be pickled.

    A turn is one response, used whole or not at all, so a request that failed may be tried again: where the
    connection failed or broke, the try took longer than `timeout_seconds`, the engine answered 408, 409, 429
    or 500 and above, what came is not JSON, or the engine gave the answer up (a finish_reason of "abort" or
    "error"). At most `retries` times for each request. Each try that failed is a Call with its error, the one
    that succeeded is the Call of the answer's node. Cancelling closes the HTTP request.

    `key_variables` are the names of all of the worker's environment variables that hold engines' keys, this
    one's or others': an environment that starts programs does not hand them on.

    What was asked for and is absent stands in the nodes' `holes` and in `trace.info["incomplete"]`; what is
    known of the engine in `trace.info["engine"]`. Chats on branches of one trace may be under way at once.

    Raises EngineError when there is no answer, of which InexpressibleError says that the dialect cannot
    express what is asked for.
    """

    engine: Engine
    options: EngineOptions = field(default_factory=EngineOptions)
    timeout_seconds: float = 600.0
    retries: int = 4
    backoff: Backoff = field(default_factory=Backoff)
    key_variables: frozenset[str] = frozenset()
    run_id: str = field(default_factory=_new_id, repr=False)

    @property
    def name(self) -> str:
        return self.engine.model

    @property
    def simulated(self) -> bool:
        return False

    async def chat(
        self,
        trace: Trace,
        messages: Sequence[Message],
        *,
        parent: int | None = None,
        sampling: SamplingParams | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        reference: str | None = None,
    ) -> Turn:
        """See `ModelClient.chat`."""
        check_asked(messages, parent, sampling)
        asking = self._asking(trace)
        tools_json = show_asked(trace, messages, parent, tools)
        pending = trace.pending
        try:
            known = branch(trace, parent, tools_json).parent
            question = self._question(trace, messages, parent, known, sampling or SamplingParams(), tools)
            answer = await asking.answer(question, self.options)
            # Where it belongs is decided now: other branches of the trace may have grown meanwhile.
            written = write_turn(trace, place(trace, parent, messages, answer.prompt_ids, tools_json), answer)
        except BaseException as error:
            if trace.pending is pending:
                trace.clear_pending()
            asking.failed(error)
            raise
        trace.add_call(asking.succeeded(written.node, answer))
        self._note(trace, written)
        return Turn(written.node, answer.message, clean_text(answer.finish_reason))

    def _question(
        self,
        trace: Trace,
        messages: Sequence[Message],
        parent: int | None,
        known: int | None,
        sampling: SamplingParams,
        tools: Sequence[Mapping[str, Any]],
    ) -> Question:
        """`known` is the last node of what the model has seen with these tools, if there is one."""
        history: list[Message] = []
        steady = False
        if parent is not None:
            nodes = [trace.nodes[index] for index in trace.path(parent)]
            history = [node.message for node in nodes]
            # With two answers on it the branch was continued once. An answer that nobody sampled was added
            # again, as the engine's template put it, and that may happen anew.
            answers = [node.sampled for node in nodes if node.message.role == "assistant"]
            steady = len(answers) > 1 and all(answers)
        # The same for all turns of a trace, of no other, and no id of ours that would leave the worker.
        conversation = hashlib.blake2b(f"{self.run_id}/{trace.id}".encode(), digest_size=16).hexdigest()
        asked = [*history, *messages]
        seen = _NO_IDS if known is None else trace.token_ids(known)
        return Question(self.engine.model, asked, sampling, tools, seen, conversation, steady)

    def _asking(self, trace: Trace) -> Asking:
        from env_worker.model.http import connections  # needs the extra [engines]

        return Asking(
            self.engine,
            DIALECTS[self.engine.dialect],
            connections(),
            trace.add_call,
            timeout_seconds=self.timeout_seconds,
            retries=self.retries,
            backoff=self.backoff,
        )

    def _note(self, trace: Trace, written: Written) -> None:
        trace.info[ENGINE] = {"dialect": self.engine.dialect, "logprobs_mode": self.options.logprobs_mode}
        if not (written.holes or written.mended):
            return
        noted = dict(trace.info.get(INCOMPLETE, {}))
        if written.mended:
            noted.pop(ROUTED_EXPERTS, None)
            if still := [index for index, node in enumerate(trace.nodes) if _lacks(node, ROUTED_EXPERTS)]:
                why = trace.nodes[still[0]].holes[ROUTED_EXPERTS]
                noted[ROUTED_EXPERTS] = {"turns": len(still), "first_node": still[0], "reason": why}
        for name in written.holes:
            reason = trace.nodes[written.node].holes[name]  # mended and cut there
            first = {"turns": 0, "first_node": written.node, "reason": reason}
            noted[name] = {**(entry := noted.get(name, first)), "turns": entry["turns"] + 1}
        trace.info[INCOMPLETE] = noted


def _lacks(node: Node, field: str) -> bool:
    """Whether that is an answer which has a hole there."""
    return node.sampled and field in node.holes
