"""The pictures that a command left in its folder, with what they show."""

from typing import Any

from modelscope_cli.report.page.html import element
from modelscope_cli.report.page.pictures import Pictures
from modelscope_cli.report.page.section import Section

_SHOWN = {
    "ablation": "What the target loses without each of them",
    "classes": "Where the evidence for each class lies",
    "comparison": "The variants over one another",
    "contact_sheet": "Those that matter most, and what the prediction becomes without them",
    "curves": "The loss, the outputs of the layers and the updates of their weights over the steps",
    "drift": "How far the predictions drift, by the share that is cut",
    "explanation": "Where the evidence lies",
    "gradient_flow": "The gradients of the layers and of their parameters",
    "lr": "The loss over the learning rate",
    "reliability": "How often the model is right, by how sure it is",
    "worst": "The images with the largest losses",
}


def pictures_section(record: Any, pictures: Pictures) -> list[Section]:
    """Return what there is to look at, if anything: every picture with its name; the tables have the numbers."""
    names = [name for name in getattr(record, "files", ()) if isinstance(name, str) and name.endswith(".png")]
    figures = [
        pictures.figure(
            name, f"{_words(name)}: {record.run.model.short_name}; the table has the numbers", _words(name)
        )
        for name in names
    ]
    seen = [figure for figure in figures if figure is not None]
    return [Section("pictures", "Images", element("div", *seen, class_="gallery"))] if seen else []


def _words(name: str) -> str:
    stem = name.removesuffix(".png")
    return _SHOWN.get(stem, stem.replace("_", " "))
