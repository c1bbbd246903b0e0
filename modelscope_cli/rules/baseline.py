"""Today's findings, written down so that only new ones count."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from modelscope_cli.errors import CannotRunError
from modelscope_cli.paths import refuse_endless
from modelscope_cli.plain_text import plain_json
from modelscope_cli.records.check import Finding

_SCHEMA = "modelscope/baseline/1"


def render_baseline(findings: Sequence[Finding]) -> str:
    """Return the file that makes these findings known: the code and layer of each, sorted."""
    pairs = sorted({(finding.code, finding.layer or "") for finding in findings})
    rows = [{"code": code, "layer": layer or None} for code, layer in pairs]
    document = {"schema": _SCHEMA, "findings": rows}
    return plain_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


def read_baseline(path: Path) -> frozenset[tuple[str, str | None]]:
    """Return the code and layer of every finding that is known.

    Raises:
        CannotRunError: the file cannot be read, or is not a baseline (exit 4).
    """
    refuse_endless(path, "baseline ")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != _SCHEMA:
            raise ValueError(f"its schema is {document['schema']!r}")
        return frozenset((str(row["code"]), row["layer"]) for row in document["findings"])
    except OSError as error:
        raise CannotRunError(f"cannot read baseline '{path}': {error.strerror}", f"ls -l {path}") from error
    except (ValueError, LookupError, TypeError) as error:
        message = f"'{path}' is not a baseline that modelscope check wrote"
        raise CannotRunError(message, f"rm {path}   and check once more writes a new one") from error


def mark_known(findings: Sequence[Finding], known: frozenset[tuple[str, str | None]]) -> tuple[Finding, ...]:
    """Return the findings, those of the baseline marked; they match by code and layer."""
    return tuple(replace(one, known=(one.code, one.layer) in known) for one in findings)
