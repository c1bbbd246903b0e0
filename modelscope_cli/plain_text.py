"""Text of other people, made harmless to show: names, labels, metadata, paths, messages. Standard library.

Whatever is shown or written passes through here, at the few places where text leaves: errors, the console, the
cells of a sheet, the words of a picture, JSON.
"""

import re

# Of Unicode's "other" characters those that steer instead of being seen: controls (Cc), formats and directions (Cf,
# without the joiners that scripts are written with), line and paragraph separators, halves of surrogate pairs.
_STEERING = (
    "\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f"
)
_UNSEEN = re.compile(f"[{_STEERING}]")
_UNSEEN_BUT_LINES = re.compile(f"(?!\n)[{_STEERING}]")
# What a CI's log takes for a command: GitHub's at the beginning of a line, the older forms anywhere.
_COMMAND = re.compile(r"^(\s*)(?=::)|(?<=#)(?=#(?:vso)?\[)", re.MULTILINE)
# What a spreadsheet takes for a formula; the wide forms too, which some turn into the others.
_FORMULA = tuple("=+-@\t\r＝＋－＠")
_MARKDOWN = re.compile(r"[\\|*_~`\[\]]")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def plain(text: str) -> str:
    """Return one line that steers no terminal and no CI; what cannot be seen stands as its escape, `\\x1b`."""
    if text.isprintable() and "::" not in text and "##" not in text:
        return text
    return _COMMAND.sub(r"\1\\", _UNSEEN.sub(_escape, text))


def in_one_line(error: object, most: int) -> str:
    """Return what an error of others says without its line ends, cut off after `most` characters."""
    return " ".join(str(error).split())[:most]


def plain_lines(text: str) -> str:
    """Return text of several lines made harmless as by `plain`, its line ends kept."""
    return _COMMAND.sub(r"\1\\", _UNSEEN_BUT_LINES.sub(_escape, text))


def plain_json(document: str) -> str:
    """Return a JSON document with the same values and nothing in it that steers."""
    seen = _UNSEEN_BUT_LINES.sub(lambda match: _utf_16(match[0]), document)
    return seen.replace("##", "#\\u0023")


def spreadsheet_cell(text: str) -> str:
    """Return a cell that no spreadsheet takes for a formula; numbers stay as they are."""
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def markdown(text: str) -> str:
    """Return text as a Markdown page shows it as it is: no emphasis, no link, no HTML."""
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
