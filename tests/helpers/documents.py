"""The parts of the documents that come from code. `make docs` writes them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import env_broker.config
import env_client.config
import env_worker.config
from env_worker.arrays.metrics import WorkerCollector
from env_worker.arrays.stats import ArrayStats
from env_worker.domain.ledger import diagram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ROOT: Final = Path(__file__).resolve().parents[2]


def settings_section(settings: Iterable[Any]) -> str:
    """A Markdown table of settings."""
    rows = ["| flag | variable | default | unit | what it sets |", "| --- | --- | --- | --- | --- |"]
    for setting in settings:
        default = "" if setting.default in (None, (), False, "") else f"`{setting.default}`"
        meaning, unit = (text.replace("|", "\\|") for text in (setting.help, setting.unit))
        rows.append(f"| `{setting.flag}` | `{setting.variable}` | {default} | {unit} | {meaning} |")
    return "\n".join(rows)


def ledger_section() -> str:
    """The ledger's transitions as a diagram."""
    return f"```mermaid\n{diagram()}```"


def metrics_section() -> str:
    """A Markdown table of a worker's metrics, by the names under which Prometheus finds them."""
    runs: Any = SimpleNamespace(draining=False, slots=SimpleNamespace(held=0, waiting=0), counters={})
    stats = ArrayStats(incomplete_fields={"routed_experts": 1})
    rows = ["| metric | kind | labels | what it says |", "| --- | --- | --- | --- |"]
    for metric in WorkerCollector("", "", runs, lambda: [stats]).collect():
        sample = metric.samples[0]
        labels = ", ".join(f"`{label}`" for label in sample.labels)
        rows.append(f"| `{sample.name}` | {metric.type} | {labels} | {metric.documentation} |")
    return "\n".join(rows)


SECTIONS: Final[Mapping[str, Mapping[str, Callable[[], str]]]] = {
    "README.md": {
        "settings of env-worker": lambda: settings_section(env_worker.config.settings_table()),
        "settings of env-broker": lambda: settings_section(env_broker.config.settings_table()),
        "settings of env-client": lambda: settings_section(env_client.config.settings_table()),
    },
    "ARCHITECTURE.md": {"ledger diagram": ledger_section},
    "docs/training_arrays.md": {"metrics of env-worker": metrics_section},
}


def rendered(document: str) -> str:
    """The text of a document with its generated sections as they should be. KeyError if one has no place."""
    text = (ROOT / document).read_text()
    for name, section in SECTIONS[document].items():
        begin, end = f"<!-- {name}: begin, by `make docs` -->", f"<!-- {name}: end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(text):
            raise KeyError(f"{document} has no place for {name!r}: add the lines {begin} and {end}")
        new = f"{begin}\n{section()}\n{end}"
        text = pattern.sub(lambda _, new=new: new, text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    for document in SECTIONS:
        (ROOT / document).write_text(rendered(document))
