"""The names of a model's layers, from a summary that was kept: completion must not import torch."""

import glob
import json
import os
from pathlib import Path


def kept_layers(model: str) -> list[str]:
    """Return the names of a model's layers, from the last of its summaries that was kept; empty without one."""
    files = sorted(
        kept_summaries().glob(f"{glob.escape(model.lower())}-*.json"), key=lambda file: file.stat().st_mtime
    )
    if not model or not files:
        return []
    try:
        rows = json.loads(files[-1].read_bytes())["document"]["layers"]
        return [row["name"] for row in rows if row["name"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def kept_summaries() -> Path:
    """Return the folder of the summaries that were kept, which need not be there."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "modelscope")
    return Path(os.environ.get("MSCOPE_CACHE") or base, "summary")
