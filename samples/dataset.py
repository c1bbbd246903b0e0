"""The image data set that the samples are trained on; `modelscope train` draws the same one."""

from modelscope_cli.training.data import CLASSES, SHAPES, SIZE, Shapes, draw, render

__all__ = ["CLASSES", "SHAPES", "SIZE", "Shapes", "draw", "render"]
