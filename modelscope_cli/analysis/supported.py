"""What each command is for: kinds of output, and ONNX files.

A command that a table does not name takes every kind.
"""

from collections.abc import Mapping, Sequence

from modelscope_cli.analysis.outputs.model_output import ModelOutput
from modelscope_cli.analysis.outputs.vectors import Vectors
from modelscope_cli.errors import CannotRunError
from modelscope_cli.models.loaded import LoadedModel

# The kinds of output that a command compares or scores.
OUTPUTS: Mapping[str, Sequence[str]] = {
    "predict": ("classes", "pixels", "boxes", "depth"),
    "predict --truth": ("classes",),
    "ablate": ("classes", "pixels"),
    "prune": ("classes", "pixels"),
}
# What a command needs that no ONNX file has.
BEYOND_ONNX: Mapping[str, str] = {
    **dict.fromkeys(("grads", "train", "lrfind"), "needs gradients"),
    **dict.fromkeys(("ablate", "prune"), "changes what layers return"),
    "explain": "needs gradients and changes weights",
    "check": "judges layers of torch by their kind",
}
# The families of models that `train` and `lrfind` take.
TRAINED = ("classification", "custom")
_WORDS = {
    "classes": "classes of images",
    "pixels": "classes of pixels",
    "boxes": "boxes",
    "depth": "depth maps",
}


def check_output(command: str, answer: ModelOutput) -> None:
    """Refuse an output of a kind that the command is not for.

    Raises:
        CannotRunError: names the kind of the output, and a command that looks at it.
    """
    kinds = OUTPUTS[command]
    if answer.main.kind in kinds:
        return
    *others, last = (_WORDS[kind] for kind in kinds)
    listed = f"{', '.join(others)} and {last}" if others else last
    raise CannotRunError(
        f"the model outputs {answer.main.words}, but {command} is for {listed}", _instead(command, answer)
    )


def _instead(command: str, answer: ModelOutput) -> str:
    """Return a hint for an output that a command is not for."""
    kind = answer.kind
    is_one_value = isinstance(answer.main, Vectors) and answer.main.is_one_value
    if command == "predict --truth":
        return "leave out --truth"
    if command == "predict" and is_one_value:
        return (
            "modelscope explain ...   takes one number; --scores sigmoid   only if it is the logit of a class"
        )
    if kind == "vectors" and answer.main.tensor().ndim in (4, 5) and "pixels" in OUTPUTS[command]:
        return "--output-kind segmentation   if they are scores of classes for each pixel"
    if kind == "vectors" and not is_one_value:
        return "modelscope stats ...   shows the outputs of all layers"
    return "modelscope explain ...   shows what in the image it depends on"


def check_classifier(loaded: LoadedModel) -> None:
    """Refuse a model that is known not to be a classifier, for `train` and `lrfind`."""
    if loaded.family not in TRAINED:
        kind = loaded.family.replace("_", " ")
        message = f"'{loaded.info.name}' is a model for {kind}: only classifiers are trained here"
        raise CannotRunError(message, "modelscope summary --list resnet")


def check_onnx(command: str, name: str) -> None:
    """Refuse an ONNX file for a command that needs more of a model than its values."""
    if command in BEYOND_ONNX:
        message = f"{command} {BEYOND_ONNX[command]}; onnxruntime, which runs '{name}', only returns values"
        raise CannotRunError(
            message, f"modelscope {command} FILE.py:NAME   the PyTorch model it was made from"
        )
