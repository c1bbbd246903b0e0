"""A cache of summaries of torchvision's models, which change only with a version or an option.

One file each in `MSCOPE_CACHE` or `~/.cache/modelscope`; `MSCOPE_CACHE=0` turns it off.
"""

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modelscope_cli.errors import ModelscopeError
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.names import kept_summaries, model_names
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.records.run import invocation, versions
from modelscope_cli.records.summary import SummaryRecord

_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Kept:
    """The cache file of one summary."""

    path: Path

    def read(self) -> tuple[SummaryRecord, list[str]] | None:
        """Return the record, with the current time, and its messages; None if there is none."""
        from modelscope_cli.records.documents import NotADocumentError, restore

        try:
            document = json.loads(self.path.read_bytes())
            record, notes = restore(document["document"]), list(document["notes"])
        except (OSError, ValueError, KeyError, TypeError, NotADocumentError):
            return None  # a damaged file is written again
        if not isinstance(record, SummaryRecord):
            return None
        invoked = invocation()
        run = replace(record.run, argv=invoked.argv, elapsed_ms=invoked.elapsed_ms)
        return replace(record, run=run), notes

    def write(self, record: SummaryRecord, notes: list[str]) -> None:
        """Write a record; an unwritable cache is ignored."""
        from modelscope_cli.output_files import make_folder, write_text

        try:
            make_folder(self.path.parent)
            write_text(self.path, json.dumps({"notes": notes, "document": record.to_dict()}))
        except (ModelscopeError, OSError):
            return


def kept_for(model: ModelRequest, inputs: InputRequest, **options: Any) -> Kept | None:
    """Return the cache file for these options; None if the result is not reproducible.

    Args:
        options: everything else that affects the result.
    """
    place = os.environ.get("MSCOPE_CACHE", "")
    is_published = model.model.lower() in model_names() and model.checkpoint is None
    if place == "0" or not is_published or inputs.files or inputs.named:
        return None
    request = {
        **versions(),
        "sources": max(file.stat().st_mtime_ns for file in _PACKAGE.rglob("*.py")),
        "model": repr(replace(model, progress=False)),  # how it is fetched does not matter
        "inputs": repr(inputs),
        **options,
    }
    key = hashlib.sha256(json.dumps(request, sort_keys=True, default=str).encode()).hexdigest()
    return Kept(kept_summaries() / f"{model.model.lower()}-{key[:32]}.json")
