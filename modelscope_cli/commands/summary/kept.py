"""Summaries of torchvision's models that were made before. Nothing of them changes but with a version or an option.

They lie in the user's cache, `MSCOPE_CACHE` or `~/.cache/modelscope`, a file each; `MSCOPE_CACHE=0` keeps none.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelscope_cli.errors import ModelscopeError
from modelscope_cli.models.names import kept_summaries, model_names
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.run import invocation, versions
from modelscope_cli.records.summary import SummaryRecord

if TYPE_CHECKING:
    from modelscope_cli.inputs.request import InputRequest
    from modelscope_cli.models.request import ModelRequest

_PACKAGE = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Told:
    """Passes on what is said, and remembers it."""

    progress: Progress
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.progress.note(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.progress, name)


@dataclass(frozen=True, slots=True)
class Kept:
    """The file of one summary."""

    path: Path

    def read(self) -> tuple[SummaryRecord, list[str]] | None:
        """Return the record, made out as of now, and what was said of it; None where there is none."""
        from modelscope_cli.records.documents import NotADocumentError, restore

        try:
            found = json.loads(self.path.read_bytes())
            record, notes = restore(found["document"]), list(found["notes"])
        except (OSError, ValueError, KeyError, TypeError, NotADocumentError):
            return None  # a damaged file is as good as none: it is written again
        if not isinstance(record, SummaryRecord):
            return None
        invoked = invocation()
        run = replace(record.run, argv=invoked.argv, elapsed_ms=invoked.elapsed_ms)
        return replace(record, run=run), notes

    def write(self, record: SummaryRecord, notes: list[str]) -> None:
        """Keep a record; a cache that cannot be written to is none."""
        from modelscope_cli.report.folder import make_folder, write_text

        try:
            make_folder(self.path.parent)
            write_text(self.path, json.dumps({"notes": notes, "document": record.to_dict()}))
        except (ModelscopeError, OSError):
            return


def kept_for(model: "ModelRequest", inputs: "InputRequest", **options: Any) -> Kept | None:
    """Return where the summary of what was asked for is kept; None where it may change from day to day.

    Args:
        options: everything else that decides it.
    """
    place = os.environ.get("MSCOPE_CACHE", "")
    is_published = model.model.lower() in model_names() and model.checkpoint is None
    if place == "0" or not is_published or inputs.files or inputs.named:
        return None
    asked = {
        **versions(),
        "sources": max(file.stat().st_mtime_ns for file in _PACKAGE.rglob("*.py")),
        "model": repr(replace(model, progress=False, offline=False)),  # how it comes here decides nothing
        "inputs": repr(inputs),
        **options,
    }
    key = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()
    return Kept(kept_summaries() / f"{model.model.lower()}-{key[:32]}.json")
