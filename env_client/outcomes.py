"""What the answers to a cancel mean, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

TOO_LATE: Final = "TOO_LATE"
CANCEL_OUTCOMES: Final[Mapping[str, str]] = {
    "ABORTED": "the run was waiting or live; it is being stopped, or has been",
    "DISCARDED": "its reply had left; the episode is taken back, and what was kept of it is discarded",
    TOO_LATE: "the episode was delivered for good, and stays so",
    "REMEMBERED": "unknown here; if the run arrives, or a worker reports it, within the late-cancel window, "
    "the cancel applies to it. Is this the run's own broker, and its end not long past?",
}
"""By the outcome's name, as `EnvClient.cancel` returns it."""
