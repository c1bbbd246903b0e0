"""The baseline of a check: read before it, written after it."""

from pathlib import Path
from typing import Any

from modelscope_cli.records.check import KnownFinding
from modelscope_cli.records.progress import Progress
from modelscope_cli.report.folder import check_file, write_text
from modelscope_cli.rules.baseline import CheckBaseline, check_update, read_baseline, render_baseline


def several(given: Any) -> Any:
    """Return one word as the only one of its kind, and anything else as it is."""
    return (given,) if isinstance(given, str) else given


def known_findings(path: Path | None, is_update: bool) -> CheckBaseline:
    """Read the baseline; one that is to be written need not be there yet.

    Raises:
        UsageError: one is to be written, and nobody says which file (exit 2).
        CannotRunError: it cannot be read, or not be written (exit 4).
    """
    if is_update:
        check_update(path)
    if path is None:
        return CheckBaseline()
    if is_update:
        check_file(path, is_forced=True)
        if not path.exists():
            return CheckBaseline()
    return read_baseline(path)


def write_baseline(
    path: Path, known: tuple[KnownFinding, ...], model: str | None, progress: Progress
) -> tuple[KnownFinding, ...]:
    """Write the baseline, and return its findings."""
    write_text(path, render_baseline(known, model))
    n = "1 finding is" if len(known) == 1 else f"{len(known)} findings are"
    progress.note(f"wrote {path}: {n} known from now on")
    return known
