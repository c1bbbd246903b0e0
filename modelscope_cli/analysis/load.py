"""`load`: load a model for the other functions."""

from typing import Unpack

from modelscope_cli.analysis import subject
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import Model
from modelscope_cli.records.keywords import ModelKeywords, spelled_out
from modelscope_cli.records.progress import SILENT, Progress


@spelled_out
def load(
    model: "Model", *, progress: Progress | None = None, **keywords: Unpack[ModelKeywords]
) -> LoadedModel:
    """Load a model as the command line does; `.module` is the `nn.Module`, in eval mode on its device.

    Args:
        model: a torchvision name, a file of weights, `package.module:attr` or `path/to/file.py:attr`; an
            `nn.Module` is described and not changed.

    Raises:
        UsageError: a name, keyword or combination that means nothing (exit 2 on the command line).
        CannotRunError: device, weights, checkpoint or your code fail (exit 4).
    """
    return subject.load(model, keywords, progress or SILENT)
