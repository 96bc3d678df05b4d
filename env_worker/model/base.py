"""What an environment may ask of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from env_worker.domain import Message, SamplingParams
from env_worker.model.offered import offer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from env_worker.domain import Trace


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of a model, already written into its trace.

    `node` is the index of the assistant node, the `parent` of whatever comes next; `finish_reason` is the
    engine's own word ("stop", "length", "tool_calls", ...).
    """

    node: int
    message: Message
    finish_reason: str


def check_asked(messages: Sequence[Message], parent: int | None, sampling: SamplingParams | None) -> None:
    """TypeError if an environment asks with something else, as the dicts of other clients; ValueError if
    there is no message to answer."""
    for message in messages:
        if not isinstance(message, Message):
            raise TypeError(
                f"a message is a {type(message).__name__}, expected Message: use Message.user(text), or "
                "Message.from_openai(dict)"
            )
    if sampling is not None and not isinstance(sampling, SamplingParams):
        raise TypeError(
            f"sampling is a {type(sampling).__name__}, expected SamplingParams: hand on context.sampling, or "
            "dataclasses.replace(context.sampling, temperature=0.5)"
        )
    if parent is None and not messages:
        raise ValueError("the model has no message to answer: pass at least one, or a parent")


def show_asked(
    trace: Trace, messages: Sequence[Message], parent: int | None, tools: Sequence[Mapping[str, Any]]
) -> str:
    """Let the trace tell what its model is being asked, and with which tools: their JSON text, "" for none.
    ValueError if there is no node `parent`, TypeError or ValueError if `tools` are not JSON."""
    tools_json = offer(trace, tools)
    trace.set_pending(messages, parent)
    return tools_json


class ModelClient(Protocol):
    """A model that answers into a trace.

    `name` is the model's name on every Call; `simulated` says that no real model stands behind it.
    """

    @property
    def name(self) -> str: ...

    @property
    def simulated(self) -> bool: ...

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
        """Ask for the message that follows `messages`, which themselves follow node `parent`.

        With `parent` None the messages start a branch at a root. While the model is asked, the trace's
        pending preview shows them; when it has answered, one node for each message and one for the answer are
        added (tokens, mask, log-probabilities, training arrays), the Call is recorded, and the preview is
        dropped. When asking fails the preview is dropped too, a Call that carries the error is recorded, and
        the error is raised.

        A branch has one set of `tools`, which its root tells where they are others than those of the trace.
        Asked after `parent` with others, or with none where it had some, the model was prompted anew: the
        turn is at the end of another branch, the one with these tools if there is one, with what that has not
        got of the history again.

        `reference` is a right answer. Only a simulated model reads it; it is never sent to an engine.

        Raises ValueError when `parent` is no node of the trace, or when there is no message to answer.
        """
        ...
