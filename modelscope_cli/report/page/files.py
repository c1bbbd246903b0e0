"""The pictures that a command left in its folder, under the names it gave them."""

from typing import Any

from modelscope_cli.report.page.html import element
from modelscope_cli.report.page.pictures import Pictures
from modelscope_cli.report.page.section import Section


def pictures_section(record: Any, pictures: Pictures) -> list[Section]:
    """Return what there is to look at, if anything: every picture with its name; the tables have the numbers."""
    names = [name for name in getattr(record, "files", ()) if name.endswith(".png")]
    figures = [
        pictures.figure(name, f"{_words(name)} of {record.run.model.short_name}", _words(name))
        for name in names
    ]
    seen = [figure for figure in figures if figure is not None]
    return [Section("pictures", "Pictures", element("div", *seen, class_="gallery"))] if seen else []


def _words(name: str) -> str:
    return name.removesuffix(".png").replace("_", " ")
