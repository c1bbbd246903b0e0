"""What `report` returns: the pages that were written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.run import first_keys, to_plain
from modelscope_cli.records.shown import Shown


@dataclass(frozen=True, slots=True)
class Page:
    """A page that was written, or that an index leads to.

    Attributes:
        file: where it is. `bytes`: how long.
        command: whose result it shows; `comparison` of two, `index` of a folder.
        model: the name of the model; empty for an index.
        verdict: what came of it, in a few words; empty where there is nothing to judge.
    """

    file: str
    bytes: int
    command: str
    model: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class ReportRecord(Shown):
    """What `report` returns: what was asked for comes first, after an index the pages it leads to.

    Attributes:
        left_out: what is wrong with the results in a folder that an index does not lead to.
    """

    versions: Mapping[str, str]
    argv: tuple[str, ...]
    pages: tuple[Page, ...]
    left_out: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return "report"

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and strings under the keys of the JSON contract."""
        head = first_keys("report", self.versions, self.argv)
        return {**head, "pages": to_plain(self.pages), "left_out": list(self.left_out)}
