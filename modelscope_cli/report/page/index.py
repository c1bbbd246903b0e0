"""The index of a folder of results."""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from modelscope_cli.records.naming import counted
from modelscope_cli.records.report import Page
from modelscope_cli.report import numbers
from modelscope_cli.report.page.html import Html, element, joined
from modelscope_cli.report.page.page import render_page
from modelscope_cli.report.page.section import Section, facts

INDEX = "index.html"


def index_page(folder: Path, target: Path, pages: Sequence[Page], left_out: Sequence[str] = ()) -> str:
    """Return a page that leads to the pages of a folder, by paths as seen from where it will lie.

    Args:
        left_out: what is wrong with results that have no page.
    """
    titles = ("result", "verdict", "command", "model", "size")
    head = element(
        "tr",
        *(element("th", title, scope="col", class_="n" if title == "size" else None) for title in titles),
    )
    rows = [_row(page, target.parent) for page in pages]
    body = element(
        "table",
        element("caption", f"{counted(len(pages), 'result')} in {folder}"),
        element("thead", head),
        element("tbody", *rows),
        class_="rows",
        id="results",
    )
    section = Section(
        "results-section",
        "Results",
        joined(
            [
                element("div", body, class_="scroll", tabindex=0, role="region", aria_label="Results"),
                facts([("left out", words) for words in left_out]) if left_out else None,
            ]
        ),
    )
    return render_page(str(folder.absolute().name), element("p", "modelscope report"), [section], [])


def _row(page: Page, here: Path) -> Html:
    file = Path(page.file)
    link = element("a", file.parent.name, href=quote(os.path.relpath(file, here)))
    cells = (page.verdict, page.command, page.model)
    size = element("td", numbers.memory(page.bytes))
    return element(
        "tr", element("th", link, scope="row"), *(element("td", cell, class_="l") for cell in cells), size
    )
