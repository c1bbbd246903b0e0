"""A document, a page, a table in a few lines of text that any processor writes alike, and their comparison.

Of a list of layers, one line a key tells how many values there are, the words among them and the range of the
numbers.
Numbers are compared to within a share of the largest number in their line; words and keys exactly.
"""

import csv
import io
import json
import re
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

SHARE = 5e-3  # of the largest number of a line
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")
# What another day, another machine or another folder changes.
VOLATILE = {
    *("argv", "bytes", "elapsed_ms", "python", "torch", "torchvision", "version", "device", "images_per_second"),
    *("seconds", "first", "threads", "cpu", "hash", "sha256", "fingerprint", "started"),
    *("machine", "machines", "hashes"),
}  # fmt: skip
# That there is an object or a list, and what is different every time.
TELLS_NOTHING = re.compile(r': (\d+ x( \d+ texts \w+)? )?"(volatile|\[#\])"$|:( \d+ x)?$')
COUNTED = {"svg", "img", "details", "input", "select", "button", "script", "style", "table", "section"}
Values = dict[str, list[Any]]


def gathered(value: Any, path: str = "", found: Values | None = None) -> Values:
    """Return the values of a document by path; those of all items of a list have one."""
    found = {} if found is None else found
    if isinstance(value, dict):
        found.setdefault(path, []).append("{}")
        for key, item in value.items():
            gathered("volatile" if key in VOLATILE else item, f"{path}.{key}", found)
    elif isinstance(value, list):
        found.setdefault(path, []).append(f"[{len(value)}]")
        for item in value:
            gathered(item, f"{path}[]", found)
    else:
        found.setdefault(path, []).append(value)
    return found


def told(path: str, values: list[Any], *, is_rough: bool = False) -> str:
    """Describe the values of one path in a line."""
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    words = [masked(one) for one in values if isinstance(one, str) and one != "{}"]
    parts = [f"{len(values)} x" if len(values) > 1 else ""]
    if len(numbers) == 1 and not is_rough:
        parts.append(written(numbers[0]))
    elif numbers:
        kind = "whole" if all(isinstance(one, int) for one in numbers) else "real"
        parts.append(f"{len(numbers)} {kind}")
        if not is_rough:
            mean = sum(numbers) / len(numbers)
            parts.append(f"{written(min(numbers))} to {written(max(numbers))}, mean {written(mean)}")
    for name, one in (("true", True), ("false", False), ("null", None)):
        n = sum(value is one for value in values)
        parts.append((f"{n} {name}" if len(values) > 1 else name) if n else "")
    if words:
        several = sorted(set(words))
        shown = " .. ".join(dict.fromkeys((words[0], words[-1]))) if len(several) < 40 else ""
        parts.append(
            f"{len(words)} texts {zlib.crc32(chr(10).join(words).encode()):08x}" if len(words) > 1 else ""
        )
        parts.append(json.dumps(shown[:160], ensure_ascii=False))
    return f"{path or '.'}: {' '.join(filter(None, parts))}".rstrip()


def masked(text: str) -> str:
    """Return a text whose numbers are replaced: they are compared where they stand as numbers."""
    return NUMBER.sub("#", text)


def written(number: float) -> str:
    return f"{number}" if isinstance(number, int) else f"{number:.6g}"


def document(text: str, *, is_rough: bool = False) -> list[str]:
    """Describe a document in JSON; a script may have printed before it."""
    record = json.loads(text[text.index("{") :])
    lines = (told(path, values, is_rough=is_rough) for path, values in sorted(gathered(record).items()))
    return [line for line in lines if not TELLS_NOTHING.search(line)]


def columns(text: str, *, is_rough: bool = False) -> list[str]:
    """Describe a table in TSV, column by column."""
    header, *rows = csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE)
    found = [f"{len(rows)} rows"]
    for place, name in enumerate(header):
        cells = ["volatile" if name in VOLATILE else row[place] if place < len(row) else "" for row in rows]
        found.append(told(name, [number_in(cell) for cell in cells], is_rough=is_rough))
    return found


def number_in(cell: str) -> str | float | int:
    try:
        number = float(cell)
    except ValueError:
        return cell
    return int(cell) if re.fullmatch(r"-?\d+", cell) else number if abs(number) < float("inf") else cell


class Skeleton(HTMLParser):
    """The headings of a page, the columns and the length of its tables, and how much of what else it has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.feed(html)
        self.lines.append(", ".join(f"{n} {tag}" for tag, n in sorted(self.count.items())))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag in COUNTED:
            self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        words = " ".join(masked(data).split())
        if not words or not self.open:
            return
        inside = next(
            (tag for tag in reversed(self.open) if tag in ("h1", "h2", "h3", "th", "dt", "caption")), None
        )
        if inside == "th" and "thead" in self.open and self.lines and self.lines[-1].startswith("columns"):
            self.lines[-1] += f" | {words}"
        elif inside == "th" and "thead" in self.open:
            self.lines.append(f"columns {words}")
        elif inside not in (None, "th"):
            self.lines.append(f"{inside} {words}")


def page(html: str) -> list[str]:
    """Describe a page."""
    return Skeleton(html).lines


def differences(text: str, golden: str) -> Iterator[str]:
    """Yield the lines that differ, with what was expected."""
    one, other = text.splitlines(), golden.splitlines()
    if [NUMBER.sub("#", line) for line in one] != [NUMBER.sub("#", line) for line in other]:
        new, old = set(map(masked, one)), set(map(masked, other))
        yield from (f"new:  {line}" for line in one if masked(line) not in old)
        yield from (f"gone: {line}" for line in other if masked(line) not in new)
        return
    for line, known in zip(one, other, strict=True):
        numbers, wanted = (
            [float(n.replace(",", "")) for n in NUMBER.findall(text)] for text in (line, known)
        )
        largest = max(map(abs, wanted), default=0)
        is_real = " real " in known or "." in "".join(NUMBER.findall(known))
        for number, meant in zip(numbers, wanted, strict=True):
            if abs(number - meant) > SHARE * largest * (is_real or largest > 1000):
                yield f"is {line}\n    was {known}"
                break
