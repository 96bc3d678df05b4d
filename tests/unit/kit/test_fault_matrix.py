"""What tests record of faults is what the document says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.helpers import fault_matrix

if TYPE_CHECKING:
    from pathlib import Path

CELLS = {
    "SIGKILL": {"runs": "`UNAVAILABLE`; never kept", "afterwards": "gone"},
    "SIGTERM": {"in keep": "`OK`; kept"},
    "flood": {"a moment of its own": "`OK`"},
}


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "matrix.md"
    path.write_text(fault_matrix.rendered(CELLS))
    monkeypatch.setattr(fault_matrix, "DOCUMENT", path)
    monkeypatch.delenv(fault_matrix.VARIABLE, raising=False)
    return path


@pytest.mark.usefixtures("document")
def test_what_is_written_is_read() -> None:
    assert fault_matrix.read() == CELLS


@pytest.mark.usefixtures("document")
@pytest.mark.parametrize(
    ("fault", "moment", "outcome"),
    [
        ("SIGKILL", "runs", "`OK`; kept"),
        ("SIGKILL", "in keep", "`UNAVAILABLE`; never kept"),
        ("SIGHUP", "runs", "`OK`; kept"),
    ],
)
def test_what_differs_from_the_document_fails(fault: str, moment: str, outcome: str) -> None:
    fault_matrix.record("SIGKILL", "runs", "`UNAVAILABLE`; never kept")
    with pytest.raises(AssertionError, match="make fault-matrix"):
        fault_matrix.record(fault, moment, outcome)


def test_the_writing_run_only_collects(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tmp_path / "found.jsonl"
    monkeypatch.setenv(fault_matrix.VARIABLE, str(found))
    fault_matrix.record("SIGHUP", "runs", "`OK`; kept")
    assert json.loads(found.read_text()) == ["SIGHUP", "runs", "`OK`; kept"]
    assert "SIGHUP" not in document.read_text()
