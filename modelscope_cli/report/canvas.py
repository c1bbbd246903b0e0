"""What all figures drawn with matplotlib have in common."""

from pathlib import Path

from modelscope_cli.errors import UsageError
from modelscope_cli.report.folder import check_file

SUFFIXES = (".png", ".svg", ".pdf")


def check_figure(path: Path) -> None:
    """Refuse a file that matplotlib would not know how to write, or that cannot be written, before anything runs.

    Raises:
        UsageError: another suffix (exit 2).
        CannotRunError: it cannot be written where it is asked for (exit 4).
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"'--plot {path}' ends in none of {', '.join(SUFFIXES)}", f"--plot {path.stem}.png")
    check_file(path)
