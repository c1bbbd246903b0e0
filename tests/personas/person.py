"""What a person does: type a line, read what comes back, and paste the hint where there is one."""

import csv
import io
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pasting import pasted

from modelscope_cli.shell.app import run


@dataclass(frozen=True)
class Answer:
    """What a line left: its exit code, and what it wrote to the two streams."""

    typed: list[str]
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.out), delimiter="\t", quoting=csv.QUOTE_NONE))

    def column(self, key: str) -> list[str]:
        return [row[key] for row in self.rows]

    @property
    def error(self) -> str:
        """What the tool says is wrong; nothing where a script that was watched said it."""
        found = re.search(r"^error: (.*)$", self.err, re.MULTILINE)
        return found[1] if found else ""

    @property
    def hint(self) -> str:
        """What can be pasted; an explanation stands behind three spaces."""
        return re.search(r"^hint: (.*)$", self.err, re.MULTILINE)[1].partition("   ")[0]


class Person:
    """Types lines in one folder. An assignment before `modelscope` is one of a shell."""

    def __init__(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.folder = folder
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def types(self, line: str, code: int = 0) -> Answer:
        """Run a line, and hold it to an exit code."""
        self._capsys.readouterr()
        words = shlex.split(line)
        with self._monkeypatch.context() as patched:
            while "=" in words[0]:
                patched.setenv(*words.pop(0).split("=", 1))
            assert words.pop(0) == "modelscope"
            exit_code = run(words)
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        assert exit_code == code, err
        return Answer(words, exit_code, out, err)

    def pastes(self, answer: Answer, code: int = 0) -> Answer:
        """Type the hint of what failed: a command, or options for the line that failed."""
        assert answer.code
        line = pasted(answer.hint, answer.typed, answer.error, {})[0].line
        return self.types(shlex.join(["modelscope", *line]), code)
