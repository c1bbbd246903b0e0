"""The baseline of a check: read before it, written after it."""

from pathlib import Path
from typing import Any

from modelscope_cli.records.check import KnownFinding
from modelscope_cli.records.progress import Progress
from modelscope_cli.report.folder import check_file, write_text
from modelscope_cli.rules.baseline import check_update, read_baseline, render_baseline


def several(given: Any) -> Any:
    """Return one word as the only one of its kind, and anything else as it is."""
    return (given,) if isinstance(given, str) else given


def known_findings(path: Path | None, is_update: bool, progress: Progress) -> tuple[KnownFinding, ...]:
    """Read the baseline; one that is to be written need not be there yet.

    Raises:
        UsageError: one is to be written, and nobody says which file (exit 2).
        CannotRunError: it cannot be read, or not be written (exit 4).
    """
    if is_update:
        check_update(path)
    if path is None:
        return ()
    if is_update:
        check_file(path, is_forced=True)
        if not path.exists():
            return ()
    known = read_baseline(path)
    if known and not is_update and all(one.value is None for one in known):
        progress.note(f"{path} keeps no values, so what grows worse stays known; --update-baseline adds them")
    return known


def write_baseline(
    path: Path, known: tuple[KnownFinding, ...], progress: Progress
) -> tuple[KnownFinding, ...]:
    """Write the baseline, and return it."""
    write_text(path, render_baseline(known))
    n = "1 finding is" if len(known) == 1 else f"{len(known)} findings are"
    progress.note(f"wrote {path}: {n} known from now on")
    return known
