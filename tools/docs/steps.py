"""What a reader of a page does, in order: run commands, write files, run Python."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (?P<name>[\w/.-]+\.\w+)\n")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do.

    Attributes:
        kind: `shown`, a command and what it prints; `line`, a command alone; `file`, to write; `python`, to run.
        what: the command, the name of the file, or the code.
        text: what is printed, or what the file holds.
        says: what the command must print, `# verdict: learning`.
        needs: why it cannot be run everywhere, `# needs timm`; empty where it can.
        code: the exit code, `# exit code 1`; a command that is shown with its output may also find something.
    """

    kind: str
    what: str
    text: str = ""
    says: str = ""
    needs: str = ""
    code: int = 0


def steps(page: str) -> Iterator[Step]:
    """Yield the steps of a page. Blocks of other kinds (`text`, `toml`, `yaml`) are to be read, not done.

    A block of `py`, `toml`, `yaml` or `json` that begins with `# NAME` is a file of that name.
    """
    for margin, kind, inside in _FENCE.findall(page):
        text = re.sub(rf"(?m)^{margin}", "", inside)
        named = _FILE.match(text)
        if kind == "console":
            command, _, printed = text.replace("\\\n", " ").removeprefix("$ ").partition("\n")
            yield Step("shown", _plain(command), printed)
        elif kind == "sh":
            yield from map(_line, text.replace("\\\n", " ").splitlines())
        elif kind == "python":
            yield Step("python", text)
        elif named:
            yield Step("file", named["name"], text)


def _line(text: str) -> Step:
    command, _, remark = text.partition("  # ")
    code = re.search(r"exit code (\d+)", remark)
    needs = re.search(r"needs (.*)", remark)
    says = re.search(r"verdict: .*", remark)
    return Step(
        "line",
        _plain(command),
        says=says[0] if says else "",
        needs=needs[1] if needs else "",
        code=int(code[1]) if code else 0,
    )


def _plain(command: str) -> str:
    return re.sub(r" {2,}", " ", command).strip()
