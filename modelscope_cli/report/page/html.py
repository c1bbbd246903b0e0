"""Elements of HTML as escaped strings, the sections of a page, and the page around them.

Any string that is not `Html` is escaped when it enters an element.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from modelscope_cli.plain_text import plain
from modelscope_cli.records.page_data import embed

Attribute = str | int | float | bool | None
_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})


class Html(str):
    """Safe markup; any other string is text."""

    __slots__ = ()


NOTHING = Html("")


def element(name: str, /, *content: str | None, **attributes: Attribute) -> Html:
    """Return an element.

    Args:
        content: texts, which are escaped, and elements, which are not; None is skipped.
        attributes: `class_` and `for_` stand for the reserved words, `aria_sort` for `aria-sort`. True is written
            without a value, None and False not at all.
    """
    start = f"<{name}{''.join(_attributes(attributes))}>"
    return Html(start if name in _VOID else f"{start}{joined(content)}</{name}>")


def joined(content: Iterable[str | None], between: str = "") -> Html:
    """Concatenate texts and elements."""
    return Html(
        between.join(one if isinstance(one, Html) else text(one) for one in content if one is not None)
    )


def text(words: str) -> Html:
    """Escape text, without control characters."""
    return Html(escape(plain(words), quote=False))


def _attributes(attributes: dict[str, Attribute]) -> Iterable[str]:
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.rstrip("_").replace("_", "-")
        yield f" {key}" if value is True else f' {key}="{escape(plain(str(value)))}"'


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a page. `name`: its anchor; `title`: its heading, and its entry in the contents."""

    name: str
    title: str
    body: Html

    def render(self) -> Html:
        heading = element("h2", self.title, id=f"{self.name}-title")
        return element("section", heading, self.body, id=self.name, aria_labelledby=f"{self.name}-title")


_ANCHORS = re.compile(r'( (?:id|for|data-for|aria-labelledby)="| href="#)')


def within(part: str, content: Html) -> Html:
    """Return content whose anchors, and links to them, begin with the name of its part of the page."""
    # Text and attributes have neither < nor >, see `text`, so that every match is in a tag.
    return Html(re.sub("<[^>]*>", lambda tag: _ANCHORS.sub(rf"\g<1>{part}-", tag[0]), content))


def facts(pairs: Sequence[tuple[str, str]]) -> Html:
    """Return labels and values as a description list; nothing without any."""
    lines = (element("div", element("dt", label), element("dd", words)) for label, words in pairs)
    return element("dl", *lines, class_="facts") if pairs else NOTHING


def folded(title: str, pairs: Sequence[tuple[str, str]]) -> Html:
    """Return labels and values that are shown on request; nothing without any."""
    return element("details", element("summary", title), facts(pairs)) if pairs else NOTHING


def render_page(
    title: str,
    lead: Html,
    sections: Sequence[Section],
    documents: Sequence[dict[str, Any]],
    *,
    answer: str = "",
    kind: str = "",
) -> str:
    """Return a page: the same bytes for the same results.

    Args:
        lead: content under the heading.
        documents: the complete results as returned by `strict`, for `ms.read`.
        answer: the heading, if it is not the title; `kind`: `error`, `warning`, `sound`, or empty.
    """
    style, script = shipped("page.css"), shipped("sort.js") + shipped("page.js")
    contents = [element("a", section.title, href=f"#{section.name}") for section in sections]
    # It allows only the page itself: no request, other script or form
    own = f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    policy = f"default-src 'none'; {own}; img-src data:; base-uri 'none'; form-action 'none'"
    head = joined(
        [
            element("meta", charset="utf-8"),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("link", rel="icon", href="data:,"),
            element("title", f"{title} · modelscope"),
            Html(f"<style>{style}</style>"),
        ]
    )
    header = element("header", element("h1", answer or title, class_=kind or None), lead)
    nav = element("nav", *contents, aria_label="Contents")
    shown = joined([header, nav, element("main", *(section.render() for section in sections), id="main")])
    body = joined(
        [
            element("a", "Skip to the result", href="#main", class_="skip"),
            shown,
            Html(embed(list(documents))),
            Html(f"<script>{script}</script>"),
        ]
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def shipped(name: str) -> str:
    return files(__package__).joinpath("shell", name).read_text(encoding="utf-8")
