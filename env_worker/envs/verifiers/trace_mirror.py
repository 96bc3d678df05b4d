"""One trace of verifiers, written into one of ours as it grows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import EpisodeError, Link
from env_worker.domain.text import clean_text
from env_worker.envs.verifiers import arrays, messages
from env_worker.envs.verifiers.asked import heads_asked
from env_worker.envs.verifiers.holes import HoleTally
from env_worker.envs.verifiers.plain import jsonable
from env_worker.model.fields.json_values import FieldError
from env_worker.model.routing_rows import ROUTED_EXPERTS

if TYPE_CHECKING:
    from env_worker.domain import Call, Trace, WeightVersionSpan
    from env_worker.envs.verifiers.asked import Asked
    from env_worker.envs.verifiers.errors import ErrorRecords

ABOUT: Final = "verifiers"
"""Key of `info` for what verifiers says of a trace and ours has no place for."""
_OURS: Final = frozenset({ABOUT, "engine", "incomplete", "training_arrays"})
_MORE: Final = ("extra_usage", "request_rewrites", "response_rewrites", "root_reply", "is_timeout", "dropped",
                "timing")  # fmt: skip
"""Not the agent's whole configuration, whose headers may hold secrets."""


class TraceMirror:
    """Brings `ours` to where `theirs` is, each time that `sync` is called: on the environments' loop only.

    verifiers announces some of what it changes, and replaces some of what it has announced: routing rows are
    repaired by the next turn, links are appended, the errors of earlier attempts put in front, lists and
    values exchanged. So what may have changed is looked at anew each time, by identity where that tells.

    Args:
        asked: what its nodes are measured by.
        errors: the errors of its episode.
    """

    def __init__(self, ours: Trace, theirs: Any, asked: Asked, errors: ErrorRecords) -> None:
        self.ours: Final = ours
        self._theirs: Final = theirs
        self._asked: Final = asked
        self._holes: Final = HoleTally(ours)
        self._links: Final[list[int]] = []
        """How many links of each node are ours already."""
        self._routing: Final[list[Any]] = []
        """The routing of each node as it was last taken over: verifiers binds another where it repairs it."""
        self._failures = 0
        """How many calls have failed since the last that did not."""
        self._records: Final = errors
        self._errors: list[Any] = []
        self._own_errors: Final[list[EpisodeError]] = []
        self._not_finite: Final[set[str]] = set()
        self._info: Final[dict[str, Any]] = {}
        self._tools: Any = None
        self._pending: list[Any] = []
        ours.info[ABOUT] = self._about()

    @property
    def theirs(self) -> Any:
        """The trace of verifiers."""
        return self._theirs

    def sync(self, *, final: bool = False) -> None:
        """Write what is new. `final`: nothing changes any more, so all is looked at, and `ok` is said."""
        self._nodes()
        self._calls()
        self._sync_tools()
        self._sync_pending()
        self._rewards()
        self._metrics()
        self._sync_errors()
        self._infos(final)
        self._holes.tell()
        if (condition := self._theirs.stop_condition) is not None:
            self.ours.set_stop(clean_text(condition))
        if final:
            self.ours.info[ABOUT] = self._about(more=True)
            self.ours.set_ok(bool(self._theirs.ok))

    def _nodes(self) -> None:
        nodes = self._theirs.nodes
        known = len(self._routing)
        for index in range(known):
            if nodes[index].routed_experts is not self._routing[index]:
                self._sync_routing(index, nodes[index])
        for index in range(known, len(nodes)):
            self._add(index, nodes[index])
        for index, node in enumerate(nodes):  # last: a link may lead to any of them
            for link in node.semantic_parents[self._links[index] :]:
                self.ours.add_link(Link(link.node, index, link.type))
            self._links[index] = len(node.semantic_parents)

    def _add(self, index: int, node: Any) -> None:
        streams = arrays.streams(node)
        self.ours.add_node(
            messages.message(node.message),
            streams.token_ids,
            parent=node.parent,
            sampled=bool(node.sampled),
            mask=streams.mask,
            is_content=streams.is_content,
            logprobs=streams.logprobs,
            created_at=node.timestamp,
            tools_json=messages.tools_json(node.tools),
        )
        self._links.append(0)
        self._routing.append(None)
        ours = self.ours.nodes[index]
        width = heads_asked(self._theirs.agent)
        self._holes.add(index, {**streams.holes, **arrays.set_sampled_arrays(ours, node, width)})
        self._sync_routing(index, node)
        if node.sampled:
            absent = arrays.absent(ours) - ours.holes.keys()
            missing = self._asked.missing.items()
            self._holes.add(index, {name: why for name, why in missing if name in absent})

    def _sync_routing(self, index: int, node: Any) -> None:
        self._routing[index] = node.routed_experts
        ours = self.ours.nodes[index]
        if reason := arrays.set_routing(ours, node.routed_experts, self._asked.options):
            self._holes.add(index, {ROUTED_EXPERTS: reason})
        elif ours.routing is not None:
            self._holes.mend(index, ROUTED_EXPERTS)

    def _calls(self) -> None:
        for theirs in self._theirs.calls[len(self.ours.calls) :]:
            self.ours.add_call(self._call(theirs))
            self._failures = 0 if theirs.error is None else self._failures + 1

    def _call(self, theirs: Any) -> Call:
        return messages.call(
            theirs,
            client=getattr(self._theirs.agent.config, "client", None),
            attempt=self._failures + 1,
            weight_versions=() if theirs.node is None else self._weight_versions(theirs.node),
            hide=self._asked.engine.redacted,
            hide_key=self._asked.engine.without_key,
        )

    def _weight_versions(self, index: int) -> tuple[WeightVersionSpan, ...]:
        try:
            return arrays.weight_versions(self._theirs.nodes[index])
        except FieldError as wrong:
            self._holes.add(index, {"weight_versions": str(wrong)})
            return ()

    def _sync_tools(self) -> None:
        if self._theirs.tools is not self._tools:
            self._tools = self._theirs.tools
            if text := messages.tools_json(self._tools):
                self.ours.set_tools(text)

    def _sync_pending(self) -> None:
        pending = self._theirs.pending
        if len(pending) == len(self._pending) and all(map(_same, pending, self._pending)):
            return
        self._pending = pending
        # verifiers does not say which node a preview follows; where nothing branches it is the last one.
        last = len(self.ours.nodes) - 1
        self.ours.set_pending([messages.message(one) for one in pending], last if last >= 0 else None)

    def _rewards(self) -> None:
        found = self._theirs.rewards
        for name in [name for name in self.ours.rewards if name not in found]:
            self.ours.remove_reward(name)
        for name, reward in found.items():
            if reward is None:
                self.ours.set_reward(name, None)
            elif math.isfinite(reward.score) and math.isfinite(reward.score * reward.weight):
                self.ours.set_reward(name, reward.score, reward.weight)
            elif name not in self._not_finite:
                self._not_finite.add(name)
                self.ours.set_reward(name, None)  # no value, and no zero either
                self._own_errors.append(_not_finite(f"reward {name!r}", reward.score))

    def _metrics(self) -> None:
        found = {name: value for name, value in self._theirs.metrics.items() if value is not None}
        for name, value in found.items():
            if math.isfinite(value):
                self.ours.set_metric(name, value)
        for name in [name for name in self.ours.metrics if not math.isfinite(found.get(name, math.nan))]:
            self.ours.remove_metric(name)

    def _sync_errors(self) -> None:
        """verifiers puts the errors of earlier attempts in front of those of this one, at its end."""
        found = [*self._theirs.errors, *self._own_errors]
        known = len(self._errors)
        if len(found) == known and all(map(_same, found, self._errors)):
            return
        made = [self._record(one) for one in found]
        if all(map(_same, found, self._errors)) and len(found) > known:
            for one in made[known:]:
                self.ours.add_error(one)
        else:
            self.ours.rewrite_errors(made)
        self._errors = found

    def _record(self, one: Any) -> EpisodeError:
        return one if isinstance(one, EpisodeError) else self._records.of(one, self._theirs)

    def _infos(self, final: bool) -> None:
        """A value that is changed in place is seen at the end only: to compare them all each turn would cost
        more the longer an episode is."""
        found = self._theirs.info
        gone = [key for key in self._info if key not in found]
        for key in gone:
            del self._info[key]
            self.ours.info.pop(_info_key(key), None)
        for key, value in found.items():
            if final or key not in self._info or self._info[key] is not value:
                self._info[key] = value
                self.ours.info[_info_key(key)] = jsonable(value)

    def _about(self, *, more: bool = False) -> Any:
        theirs = self._theirs
        task, config = theirs.task, theirs.agent.config
        said = {
            "version": theirs.verifiers.version,
            "task": {"type": task.type, "idx": getattr(task.data, "idx", None), "key": task.key},
            "harness": getattr(getattr(config, "harness", None), "id", None),
            "client": getattr(getattr(config, "client", None), "type", None),
        }
        if more:
            dumped = theirs.model_dump(mode="json", serialize_as_any=True, include=set(_MORE))
            said |= {key: value for key, value in dumped.items() if value not in (None, [], {}, False)}
        return jsonable(said)


def _same(one: object, other: object) -> bool:
    return one is other


def _info_key(key: object) -> str:
    text = clean_text(str(key))
    return f"{text}_" if text in _OURS else text


def _not_finite(what: str, value: float) -> EpisodeError:
    return EpisodeError(
        "ValueError", f"{what} is {value}, expected a finite number: it has no value", "environment"
    )
