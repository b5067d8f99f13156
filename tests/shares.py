"""How much of what was compared is equal."""

from __future__ import annotations

from typing import NamedTuple


class Share(NamedTuple):
    """How many are equal, of how many."""

    equal: int = 0
    of: int = 0

    def plus(self, other: Share) -> Share:
        return Share(self.equal + other.equal, self.of + other.of)

    def __str__(self) -> str:
        return f"{self.equal} of {self.of} ({self.equal / self.of:.1%})" if self.of else "none"
