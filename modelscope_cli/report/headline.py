"""The line above a table: which model, on what, and where."""

from modelscope_cli.records.naming import counted
from modelscope_cli.records.run import Run
from modelscope_cli.report import numbers


def headline(run: Run, images: int, *details: str) -> str:
    """Return `resnet34 (ResNet, weights random) on 2 images, train mode, cpu`; empty details are left out."""
    where = ", ".join(filter(None, (given(run, images), *details, run.device)))
    return f"{run.model.name} ({run.model.class_name}, weights {run.model.weights.resolved}) on {where}"


def given(run: Run, images: int) -> str:
    """Return what the model was given: how many images, or the shape of what is none."""
    if run.input and run.input.source != "image":
        return f"{run.input.source} {numbers.shapes(run.input.shape)}"
    return counted(images, "image")
