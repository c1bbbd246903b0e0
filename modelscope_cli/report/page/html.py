"""Elements of HTML as strings, in which the words of other people stay words.

A template engine would be a dependency for forty lines: a page is a few functions that put elements into elements,
and what is not `Html` yet is escaped wherever it enters one.
"""

from collections.abc import Iterable
from html import escape

from modelscope_cli.plain_text import plain

Attribute = str | int | float | bool | None
_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})


class Html(str):
    """Markup that is safe where it stands; any other string is text."""

    __slots__ = ()


NOTHING = Html("")


def element(name: str, /, *content: str | None, **attributes: Attribute) -> Html:
    """Return an element.

    Args:
        content: texts, which are escaped, and elements, which are not; None is nothing.
        attributes: `class_` and `for_` are the attributes whose names Python keeps, `aria_sort` is `aria-sort`.
            True stands without a value, None and False not at all.
    """
    opened = f"<{name}{''.join(_attributes(attributes))}>"
    return Html(opened if name in _VOID else f"{opened}{joined(content)}</{name}>")


def joined(content: Iterable[str | None]) -> Html:
    """Return texts and elements one behind the other."""
    return Html("".join(one if isinstance(one, Html) else text(one) for one in content if one is not None))


def text(words: str) -> Html:
    """Return words as a page shows them: no markup, and nothing in it that steers."""
    return Html(escape(plain(words), quote=False))


def _attributes(attributes: dict[str, Attribute]) -> Iterable[str]:
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.rstrip("_").replace("_", "-")
        yield f" {key}" if value is True else f' {key}="{escape(plain(str(value)))}"'
