"""How a forward is called, by its signature: positional, by name, or with one dict; targets for training."""

import inspect
import re
import shlex
import typing
from collections.abc import Collection, Container, Mapping
from inspect import Parameter
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.errors import UsageError, nearest_names
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.other_shapes import shapes_taken
from modelscope_cli.inputs.grammar import shape_in
from modelscope_cli.inputs.model_config import configured_shape
from modelscope_cli.inputs.noise import IMAGES, natural_named, signature_of
from modelscope_cli.inputs.tensor_files import TENSOR_SUFFIXES, suffix_of
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.run import Arguments, Shape, invocation

_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
# Names in all transformers models; they have defaults even where a forward requires them.
_TEXT = "input_ids"
Parameters = dict[str, Parameter]


def arrange_named(module: nn.Module | None, named: Mapping[str, Any]) -> Arguments:
    """Return named inputs as keywords; for a forward with a single argument of another name as one dict, and a
    single input as this argument."""
    values = dict(named)
    parameters = signature_of(module)
    if parameters is None:
        return values
    ordered = _ordered(parameters)
    only = [name for name in _required(parameters) if name in ordered] or ordered
    if len(only) == 1 and values.keys().isdisjoint(parameters):
        if _takes_a_dict(module, parameters[only[0]], values):
            return (values,)
        if len(values) == 1:
            return (*values.values(),)
    accepted = _known(parameters)
    strange = next((name for name in values if accepted is not None and name not in accepted), None)
    if strange is not None:
        names = [name for name in parameters if name in (accepted or ())]
        message = (
            f"forward() of {type(module).__name__} has no argument '{strange}'; it has {some(names, 12)}"
        )
        renamed = dict.fromkeys(nearest_names(strange, names, n=1), values[strange])
        raise UsageError(message, suggestion(module, specs=values | renamed))
    if problem := _missing(module, parameters, values):
        raise UsageError(problem, suggestion(module, specs=values))
    return values


def check_call(module: nn.Module, args: Arguments, file: str | None = None) -> None:
    """Refuse positional arguments that do not suit this forward, before it raises a TypeError.

    Args:
        file: the image they were made from, for the hint.
    """
    parameters = signature_of(module)
    # A pre-forward hook may add missing arguments.
    if isinstance(args, dict) or parameters is None or module._forward_pre_hooks:
        return
    ordered = _ordered(parameters)
    problem = _missing(module, parameters, ordered[: len(args)])
    what = f"forward() of {type(module).__name__}"
    is_open = any(p.kind is Parameter.VAR_POSITIONAL for p in parameters.values())
    if len(args) > len(ordered) and not is_open:
        of_order = f"{what} takes {counted(len(ordered), 'argument')} in order, not {len(args)}"
        if not (problem or file or invocation().argv):
            raise UsageError(f"{of_order} as in a tuple", "give the images alone, without labels")
        if len(ordered) == 1 and file:
            raise UsageError(of_order, f"--input {shlex.quote(f'{ordered[0]}={file}')}   as one tuple")
        problem = problem or of_order
    text = next((arg for name, arg in zip(ordered, args, strict=False) if name == _TEXT), None)
    if any(tensor.is_floating_point() for _, tensor in tensors_in(text)):
        problem = problem or f"{what} takes integers as '{_TEXT}', not an image"
    if problem:
        given = next((tuple(one.shape[1:]) for _, one in tensors_in(args) if one.ndim == 4), None)
        raise UsageError(problem, suggestion(module, file, image=given))


def suggestion(
    module: nn.Module | None,
    file: str | None = None,
    specs: Mapping[str, Any] = MappingProxyType({}),
    image: Shape | None = None,
) -> str:
    """Return `--input` options that this forward takes.

    Args:
        file: an image, for the first non-text argument.
        specs: the typed specs by name.
        image: the channels, height and width that were given.
    """
    parameters = {name: p for name, p in (signature_of(module) or {}).items() if p.kind not in _VARIADIC}
    names = [name for name in parameters if name in (*_required(parameters), _TEXT, IMAGES)]
    file = None if suffix_of(file or "") in TENSOR_SUFFIXES else file
    typed = {name: value[0] if isinstance(value, list) else value for name, value in specs.items()}
    shapes = (shape_in(name, spec) for name, spec in typed.items() if isinstance(spec, str))
    image = next((spec.shape[-3:] for spec in shapes if spec is not None and len(spec.shape) > 2), image)
    image = (1, *(image or configured_shape(module) or (3, 224, 224)))
    names = [*dict.fromkeys((*names, *(natural_named(module, 1) or ())))] or [*parameters, "NAME"][:1]
    words = []
    texts = [name for name in names if name in parameters and _is_text(parameters[name])]
    taken = shapes_taken(module, names, image, texts) if module is not None else {}
    for name in names:
        spec = typed.get(name)
        if not isinstance(spec, str):
            shape = tuple(getattr(typed.get(name, taken.get(name)), "shape", image))
            usual = file if file and len(shape) > 2 else ",".join(map(str, shape))
            spec = "int64:1,16" if name in texts else usual
            file = None if spec == file else file
        words.append(f"--input {shlex.quote(f'{name}={spec}')}")
    return " ".join(words)


def _missing(module: nn.Module | None, parameters: Parameters, names: Container[str]) -> str:
    """Say which required arguments are not among these; empty if all are."""
    missing = some([name for name in _required(parameters) if name not in names], 8)
    return f"forward() of {type(module).__name__} needs more arguments: {missing}" if missing else ""


def _ordered(parameters: Parameters) -> list[str]:
    return [n for n, p in parameters.items() if p.kind not in (*_VARIADIC, Parameter.KEYWORD_ONLY)]


def _required(parameters: Parameters) -> list[str]:
    return [n for n, p in parameters.items() if p.default is Parameter.empty and p.kind not in _VARIADIC]


def _known(parameters: Parameters) -> list[str] | None:
    """Return the accepted keyword names; None if any is accepted."""
    names = [n for n, p in parameters.items() if p.kind not in (*_VARIADIC, Parameter.POSITIONAL_ONLY)]
    for parameter in parameters.values():
        if parameter.kind is Parameter.VAR_KEYWORD:
            kinds = typing.get_args(parameter.annotation)  # of `**kwargs: Unpack[SomeTypedDict]`
            if not kinds or not typing.is_typeddict(kinds[0]):
                return None
            names += [name for name in kinds[0].__annotations__ if name not in names]
    return names


def _takes_a_dict(module: Any, parameter: Parameter, names: Collection[str]) -> bool:
    """Tell whether the only argument of a forward is a dict with these names: it is annotated so, or not as a
    tensor and there are several, or a method of the class has one of them as a literal."""
    text = _annotation(parameter)
    if (is_dict := re.search("dict|mapping", text, re.IGNORECASE) is not None) or "Tensor" in text:
        return is_dict
    codes = (getattr(one, "__code__", None) for one in (module.forward, *vars(type(module)).values()))
    return len(names) > 1 or any(name in code.co_consts for code in codes if code for name in names)


def _is_text(parameter: Parameter) -> bool:
    is_called_so = re.search("(^|_)(ids|tokens?|text|words)$", parameter.name) is not None
    return is_called_so or re.search("(Long|Int)Tensor", _annotation(parameter)) is not None


def _annotation(parameter: Parameter) -> str:
    annotation = parameter.annotation
    return "" if annotation is Parameter.empty else inspect.formatannotation(annotation)


IN_WORDS = "one object in every image, whose box is the central half"


def training_args(model: nn.Module, family: str, args: Arguments, label: int = 1) -> Arguments:
    """Return the arguments of a forward in train mode: for detection, with a synthetic target per image.

    A target has one box over the middle half of each side with `label`, filled by its mask, with all keypoints
    visible on its diagonal. Other families take the same arguments as in eval mode.
    """
    if family != "detection" or len(args) != 1:
        return args
    (images,) = args.values() if isinstance(args, dict) else args
    predictor = getattr(getattr(model, "roi_heads", None), "keypoint_predictor", None)
    n_keypoints = getattr(getattr(predictor, "kps_score_lowres", None), "out_channels", 1)
    targets = [_target(image, label, n_keypoints) for image in images]
    return {**args, "targets": targets} if isinstance(args, dict) else (images, targets)


def _target(image: Tensor, label: int, n_keypoints: int) -> dict[str, Tensor]:
    height, width = image.shape[-2:]
    top, left, bottom, right = height // 4, width // 4, height - height // 4, width - width // 4
    box = torch.tensor([[left, top, right, bottom]], dtype=torch.float32, device=image.device)
    mask = torch.zeros(1, height, width, dtype=torch.uint8, device=image.device)
    mask[:, top:bottom, left:right] = 1
    steps = torch.linspace(0.1, 0.9, n_keypoints, device=image.device)[:, None]
    places = box[0, :2] + steps * (box[0, 2:] - box[0, :2])
    keypoints = torch.cat([places, torch.ones_like(steps)], dim=1)[None]
    return {
        "boxes": box,
        "labels": torch.tensor([label], device=image.device),
        "masks": mask,
        "keypoints": keypoints,
    }
