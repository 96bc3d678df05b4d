"""One deliberate bug."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class MutantError(Exception):
    """A mutant that cannot be made: the code that it changes has changed. Mend the mutant."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old`, which stands once in `file`, becomes `new`; then at least one of `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> str:
        """Change the file below `root`; its text before. MutantError if `old` is not there exactly once."""
        path = root / self.file
        if not path.exists():
            raise MutantError(f"{self.file} does not exist")
        text = path.read_text()
        if (count := text.count(self.old)) != 1:
            raise MutantError(f"{self.file} has {count} places with {self.old!r}, expected one")
        path.write_text(text.replace(self.old, self.new))
        return text
