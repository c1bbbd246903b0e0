"""Escape untrusted text before it is shown: names, labels, metadata, paths, messages. Standard library.

Applied wherever text is output: errors, the console, table cells, text in images, JSON.
"""

import re
from collections.abc import Callable
from typing import Any

# Invisible control characters: controls (Cc), formats and directions (Cf, without the joiners that scripts need),
# line and paragraph separators, lone surrogates.
_STEERING = (
    "\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f"
)
_UNSEEN = re.compile(f"[{_STEERING}]")
_UNSEEN_BUT_LINES = re.compile(f"(?!\n)[{_STEERING}]")
# Commands in CI logs: GitHub's at the beginning of a line, the older forms anywhere.
_COMMAND = re.compile(r"^(\s*)(?=::)|(?<=#)(?=#(?:vso)?\[)", re.MULTILINE)
# Beginnings of spreadsheet formulas, with the full-width forms that some programs convert.
_FORMULA = tuple("=+-@\t\r＝＋－＠")
_MARKDOWN = re.compile(r"[\\|*_~`\[\]]")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def plain(text: str) -> str:
    """Return one line without terminal or CI commands; invisible characters are escaped: `\\x1b`."""
    if text.isprintable() and "::" not in text and "##" not in text:
        return text
    return _COMMAND.sub(r"\1\\", _UNSEEN.sub(_escape, text))


def in_one_line(error: object, most: int) -> str:
    """Return an error's message on one line, cut off after `most` characters."""
    return " ".join(str(error).split())[:most]


def plain_lines(text: str) -> str:
    """Return text escaped as by `plain`, with its line breaks."""
    return _COMMAND.sub(r"\1\\", _UNSEEN_BUT_LINES.sub(_escape, text))


def plain_json(document: str) -> str:
    """Return a JSON document with the same values and control characters escaped."""
    if not document.isprintable():
        document = _UNSEEN_BUT_LINES.sub(lambda match: _utf_16(match[0]), document)
    return document.replace("##", "#\\u0023")


def with_numbers(value: Any, write: Callable[[float], object]) -> Any:
    """Return a JSON value whose floats are replaced by what `write` returns."""
    if isinstance(value, float):
        return write(value)
    if isinstance(value, dict):
        return {key: with_numbers(item, write) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [item if type(item) is int else with_numbers(item, write) for item in value]
    return value


def spreadsheet_cell(text: str) -> str:
    """Return a cell that spreadsheets do not read as a formula; numbers, also several, are unchanged."""
    return f"'{text}" if text.startswith(_FORMULA) and not all(map(_is_number, text.split())) else text


def markdown(text: str) -> str:
    """Return text escaped for Markdown: no emphasis, no links, no HTML."""
    escaped = _MARKDOWN.sub(r"\\\g<0>", plain(text).strip())
    return "".join(_HTML.get(mark, mark) for mark in escaped)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _utf_16(mark: str) -> str:
    units = mark.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
