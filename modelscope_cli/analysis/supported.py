"""What each command is for: kinds of output, and ONNX files.

A command that a table does not name takes every kind.
"""

from collections.abc import Mapping, Sequence

from modelscope_cli.analysis.outputs.model_output import ModelOutput
from modelscope_cli.analysis.outputs.vectors import Vectors
from modelscope_cli.errors import CannotRunError
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import is_exported

# The kinds of output that a command compares or scores.
OUTPUTS: Mapping[str, Sequence[str]] = {"predict --truth": ("classes",), "ablate": ("classes", "pixels")}
# What a command needs that no ONNX file has.
BEYOND_ONNX: Mapping[str, str] = {
    **dict.fromkeys(("grads", "train", "lrfind"), "needs gradients"),
    "ablate": "changes what layers return",
    "explain": "needs gradients and changes weights",
    "check": "judges layers by their torch class",
}
# The families of models that `train` and `lrfind` take.
TRAINED = ("classification", "custom")


def check_output(command: str, answer: ModelOutput, hint: str = "") -> None:
    """Refuse an output of a kind that the command is not for.

    Raises:
        CannotRunError: names the kind of the output, and a command that looks at it.
    """
    kinds = OUTPUTS[command]
    if answer.main.kind in kinds:
        return
    listed = " and ".join(f"classes of {'images' if kind == 'classes' else kind}" for kind in kinds)
    raise CannotRunError(
        f"the model outputs {answer.main.words}, but {command} is for {listed}",
        hint or _instead(command, answer),
    )


def _instead(command: str, answer: ModelOutput) -> str:
    """Return a hint for an output that a command is not for."""
    if isinstance(answer.main, Vectors) and not answer.main.is_one_value:
        n_dims = answer.main.tensor().ndim
        if n_dims in (4, 5) and "pixels" in OUTPUTS[command]:
            return "--output-kind segmentation   if they are class scores for each pixel"
        if n_dims == 2 and answer.why:
            return "--output-kind classes   if they are class scores"
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
        if is_exported(name):
            message = f"'{name}' is an exported program, which runs in the mode it was exported in"
        raise CannotRunError(message, "--model FILE.py:NAME   the PyTorch model it was made from")
