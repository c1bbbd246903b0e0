"""Parts of a page that the program fills in, between two comments that a reader does not see."""

import re


def fill(page: str, name: str, text: str) -> str:
    """Return the page with the region of this name holding `text`.

    Raises:
        ValueError: the page has no such region, or several.
    """
    region = re.compile(rf"(<!-- made: {name} -->\n).*?(<!-- end: {name} -->)", re.DOTALL)
    filled, count = region.subn(lambda found: f"{found[1]}\n{text.strip()}\n\n{found[2]}", page)
    if count != 1:
        raise ValueError(f"there are {count} regions '{name}'")
    return filled


def without(page: str) -> str:
    """Return what people wrote of a page."""
    return re.sub(r"<!-- made: (.*?) -->\n.*?<!-- end: \1 -->", "", page, flags=re.DOTALL)
