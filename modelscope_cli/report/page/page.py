"""The page itself: its head with the policy that forbids every request, its sections, its data."""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from modelscope_cli.records.page_data import embed
from modelscope_cli.report.page.html import Html, element, joined
from modelscope_cli.report.page.section import Section


def render_page(
    title: str, lead: Html, sections: Sequence[Section], documents: Sequence[dict[str, Any]]
) -> str:
    """Return a page: the same bytes for the same results.

    Args:
        lead: stands under the title.
        documents: the whole results as `strict` leaves them, which `ms.read` gives back.
    """
    style, script = _shipped("page.css"), _shipped("page.js")
    contents = [element("a", section.title, href=f"#{section.name}") for section in sections]
    head = joined(
        [
            element("meta", charset="utf-8"),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">'),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("link", rel="icon", href="data:,"),
            element("title", f"{title} · modelscope"),
            Html(f"<style>{style}</style>"),
        ]
    )
    body = joined(
        [
            element("a", "Skip to the result", href="#main", class_="skip"),
            element("header", element("h1", title), lead),
            element("nav", *contents, aria_label="Contents"),
            element("main", *(section.render() for section in sections), id="main"),
            Html(embed(list(documents))),
            Html(f"<script>{script}</script>"),
        ]
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _policy(style: str, script: str) -> str:
    """Allow what is in the page and nothing else: no request, no other script, no form that is sent."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _shipped(name: str) -> str:
    return files(__package__).joinpath("shell", name).read_text(encoding="utf-8")
