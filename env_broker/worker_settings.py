"""Settings that are for local workers, in a broker that starts none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from env_broker.config import settings_table

if TYPE_CHECKING:
    from env_broker.config import BrokerSettings

_OF_WORKERS: Final = ("environments", "hook", "max_concurrent", "late_cancel_seconds", "isolate")
"""Those that have no other meaning, nor one by default."""


def without_effect(settings: BrokerSettings) -> str:
    """A sentence that names those that were set, where there will be no local worker; empty where all is
    well."""
    if settings.most_workers:
        return ""
    flags = [
        row.flag
        for row in settings_table()
        if row.name in _OF_WORKERS and getattr(settings, row.name) != row.default
    ]
    if not flags:
        return ""
    return (
        f"{', '.join(flags)}: no effect, as --workers is 0 and workers that join have settings of their own; "
        "add --workers (or --min-workers and --max-workers) to start some here, or give it to env-worker"
    )
