"""What the server's answer to a confirmation says of the episode's delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from envtrio.v1.env_service_pb2 import ConfirmOutcome

from env_client.confirmations import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

# All others, also those of a later version, mean: not known here.
VERDICTS: Final[Mapping[ConfirmOutcome.ValueType, Verdict]] = {
    ConfirmOutcome.CONFIRM_OUTCOME_CONFIRMED: Verdict.CONFIRMED,
    ConfirmOutcome.CONFIRM_OUTCOME_DISCARDED: Verdict.DISCARDED,
    ConfirmOutcome.CONFIRM_OUTCOME_WORKER_LOST: Verdict.WORKER_LOST,
}
