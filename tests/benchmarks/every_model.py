"""`summary` of every model that torchvision lists."""

import contextlib
import io
from collections.abc import Iterator

from figure import Figure, n_of
from torchvision.models import list_models

from modelscope_cli.shell.app import run


def measure(pairs: int | None) -> Iterator[Figure]:
    """Count the names that exit with 0 and print a table."""
    names = list_models()
    failed = [name for name in names if not _prints_a_table(name)]
    yield Figure(
        "`summary` of every name in `list_models()`",
        n_of(len(names), failed),
        f"{len(names)} of {len(names)}",
        not failed,
    )


def _prints_a_table(name: str) -> bool:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        code = run(["summary", name, "--format", "table"])
    return code == 0 and out.getvalue().count("\n") > 10
