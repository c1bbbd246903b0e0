"""What a command left behind."""

import csv
import io
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """Its exit code and what it wrote to the two streams."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Parse stdout as JSON, and as nothing looser."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(self.out, parse_constant=refuse)

    @property
    def rows(self) -> list[dict[str, str]]:
        """Parse stdout as tab-separated values."""
        return list(csv.DictReader(io.StringIO(self.out), delimiter="\t", quoting=csv.QUOTE_NONE))

    def column(self, key: str) -> list[str]:
        return [row[key] for row in self.rows]
