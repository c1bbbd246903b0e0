"""Find the architecture of a checkpoint given as the model. Standard library."""

import re
import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from modelscope_cli.checkpoints.entries import TORCH_EXPORT, TORCH_SCRIPT, Contents
from modelscope_cli.checkpoints.file_type import no_tensors
from modelscope_cli.checkpoints.identify import identify, image_side
from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.checkpoints.safety.scan import scan_checkpoint
from modelscope_cli.errors import CannotRunError, ModelscopeError, UsageError
from modelscope_cli.models.hubs import (
    PACKAGES,
    DescribedModel,
    check_hub,
    described_beside,
    described_within,
    names_in,
)
from modelscope_cli.models.names import class_with, file_with, timm_names
from modelscope_cli.models.request import Headers, ModelRequest, is_checkpoint
from modelscope_cli.records.identified import Identified
from modelscope_cli.records.run import invocation
from modelscope_cli.records.weights import KNOWN

# Below this share of fitting tensors the nearest model is not suggested.
_MIN_SCORE = 0.5
_PREDICTING = (("predict",), ("explain",), ("ablate",))  # the commands for which a random head is of no use


def recognise(request: ModelRequest) -> tuple[ModelRequest, tuple[str, ...]]:
    """Turn `--model FILE` into a model name and a checkpoint for it, with a note; return other requests unchanged.

    A `config.json` next to the file takes precedence over names and shapes, as timm's and torchvision's look alike.
    With `strict` off the nearest model is accepted. The returned request keeps the headers.
    """
    if not is_checkpoint(request.model):
        return request, ()
    path = Path(request.model)
    if request.checkpoint is not None:
        message = f"'{path}' and checkpoint '{request.checkpoint}' cannot be combined: both hold weights"
        raise UsageError(message, f"leave out --checkpoint {shlex.quote(str(request.checkpoint))}")
    described = described_beside(path)
    if described is not None and described.is_whole:
        return _of_hub(request, described)
    headers = request.headers_of(path)
    if headers is None:
        contents = read_contents(path, request.key)
        headers = Headers(path, request.key, contents, identify(contents.shapes()))
    contents, identified = headers.contents, headers.architecture
    is_of_timm = bool(identified.candidates) and identified.candidates[0].startswith("timm:")
    is_part = bool(identified.prefix and identified.unexpected)
    is_within = is_of_timm or (identified.name is None and not is_part)
    described = described or (described_within(contents) if is_within else None)
    if described is None and is_of_timm:
        described = _of_timm(path, identified.candidates)
    if described is not None:
        return _of_hub(replace(request, checkpoint=path, headers=headers), described)
    name = identified.name or next(filter(identified.candidates.__contains__, names_in(contents, {})), None)
    is_near = identified.score >= _MIN_SCORE and not is_part
    if is_near and not (name or identified.candidates or request.is_strict):
        name = identified.nearest
    if name is None and not identified.candidates and _holds_layers_of_torch(contents):
        note = f"model: '{path}', saved whole: all its classes are torch layers"
        return replace(request, checkpoint=path, headers=headers), (note,)
    if name is None:
        raise _not_recognised(path, identified, contents)
    model_args = request.model_args
    side = image_side(contents.shapes(), identified.prefix) if name.startswith("vit_") else None
    if side is not None and not any(argument.startswith("image_size") for argument in model_args):
        model_args = (*model_args, f"image_size={side}")
    note = f"model: {name}, recognised by the names and shapes in '{path}'"
    return replace(request, model=name, checkpoint=path, model_args=model_args, headers=headers), (note,)


def _of_timm(path: Path, candidates: tuple[str, ...]) -> DescribedModel:
    """Choose the candidate in the file's name, as timm names its files, else the plainest."""
    listed = " or ".join(candidates)
    if not timm_names():
        message = f"'{path}' seems to be {listed}, by its names and shapes, but timm is not installed"
        raise UsageError(message, f"pip install {PACKAGES['timm']}")
    called = [name for name in candidates if path.name.startswith(name.partition(":")[2])]
    model = max(called, key=len, default=candidates[0])
    by = f"the names and shapes in '{path}'"
    if len(candidates) > 1:
        others = ", ".join(name for name in candidates if name != model)
        by += " and the name of the file" if called else ""
        by += f"; they also fit {others}: --model NAME --checkpoint {shlex.quote(str(path))} uses another one"
    return DescribedModel(model, by)


def _of_hub(request: ModelRequest, described: DescribedModel) -> tuple[ModelRequest, tuple[str, ...]]:
    """Request a hub model; typed model arguments override described ones."""
    check_hub(described.model)
    typed_names = {argument.partition("=")[0] for argument in request.model_args}
    kept = (one for one in described.model_args if one.partition("=")[0] not in typed_names)
    note = f"model: {described.model}, by {described.by}"
    return replace(request, model=described.model, model_args=(*kept, *request.model_args)), (note,)


def _not_recognised(path: Path, identified: Identified, contents: Contents) -> ModelscopeError:
    file = shlex.quote(str(path))
    if contents.format in (TORCH_SCRIPT, TORCH_EXPORT) and not identified.candidates:
        reason = "loading it can run its code, so it is not loaded"
        message = f"'{path}' is a program of {contents.format}: {reason}"
        advice = "give the Python module that it was made from, as FILE.py:NAME"  # TorchScript runs no hooks
        if contents.format == TORCH_EXPORT:
            advice = "a copy that ends in .pt2 is scanned and then run"
        return CannotRunError(message, f"modelscope weights {file}   lists its tensors; {advice}")
    if identified.candidates:
        models = ", ".join(identified.candidates)
        message = f"'{path}' matches several models with the same weight shapes: {models}"
        return UsageError(message, f"--model {identified.candidates[0]} --checkpoint {file}")
    if any(name.startswith("fastai.learner.") for name in contents.foreign):
        message = f"'{path}' is a learner that fastai exported: its tensors are read without running its code"
        load = f"modelscope_cli.summary(load_learner({str(path)!r}).model)"
        hint = f"modelscope weights {file}   lists them; only if you trust it, in Python: {load}"
        return CannotRunError(message, hint)
    if not contents.tensors:
        return no_tensors(path)
    is_other = identified.prefix or not identified.is_headless
    if is_other and (kind := contents.saved_as[0]):
        message = f"'{path}' is a model of the class '{kind}', saved whole"
        message += ": its tensors are read without running its code"
        return CannotRunError(message, _loader_of(kind, path, contents))
    model = class_with([tensor.name for tensor in contents.tensors])
    hint = f"--model {shlex.quote(model)} --checkpoint {file}"
    if identified.score < _MIN_SCORE:
        message = f"'{path}' does not hold the weights of a torchvision or timm model"
        if all(_OF_SEQUENTIAL.match(tensor.name) for tensor in contents.tensors):
            kind = "weights named as in an nn.Sequential, which does not tell the types of its layers"
            message = f"'{path}' holds {kind}"
            hint += "   FILE.py has the lines that built it: NAME = nn.Sequential(...)"
        elif invocation().argv[:1] == ("check",):
            hint += f"   modelscope weights {file} --stats checks it for NaN, without a model"
        # The first factor of each change of weights, as peft, diffusers, kohya and loralib name it.
        factors = [one for one in contents.tensors if re.search(r"lora_(embedding_)?(A|down)\b", one.name)]
        if factors and all("lora_" in tensor.name for tensor in contents.tensors):
            rank = ", ".join(sorted({str(*one.shape[:1]) for one in factors}))
            message = f"'{path}' is a LoRA adapter of rank {rank}: changes to a model, without its weights"
            hint = f"modelscope weights {file}   lists it; FILE.py:NAME can return the model with it merged"
        return CannotRunError(message, hint)
    is_body = identified.is_headless and not identified.unexpected
    problem = "has no head to predict with" if is_body else "is not a torchvision or timm model"
    if model == "FILE.py:NAME":
        loads = identified.loads(str(path), contents.note)
        hint = f"--model {loads}"
        if identified.is_headless and invocation().argv[:1] in _PREDICTING:
            head = f" ({found})" if (found := identified.head_in(contents.shapes())) else ""
            needs = f"predictions need its head{head}, as in FILE.py:NAME"
            hint = f"modelscope summary {loads}   lists its layers; {needs}"
    return CannotRunError(f"'{path}' {problem}: nearest is {identified.words()}", hint)


_OF_SEQUENTIAL = re.compile(r"\d+\.")
# A class: `torch.nn.modules.module.torch.load` would be a function that is found through its module.
_LAYER_OF_TORCH = re.compile(r"torch\.nn\.modules\.\w+\.[A-Z]\w*")


def _holds_layers_of_torch(contents: Contents) -> bool:
    """Tell whether a file is a model saved whole whose classes are all layers of torch, and calls none of them."""
    if contents.note is not None or not all(map(_LAYER_OF_TORCH.fullmatch, contents.foreign)):
        return False
    safety = scan_checkpoint(contents.path)
    return safety.rank == KNOWN and bool(safety.weights_only.names)


def _loader_of(kind: str, path: Path, contents: Contents) -> str:
    """Return the options that build a model saved whole, as far as known."""
    module, _, name = kind.rpartition(".")
    file = shlex.quote(str(path))
    # A class that does not say what is in it, or one that gave other tensors by its default arguments
    if module.startswith(("torch.nn.modules.", "torchvision.models.")):
        load = f"NAME = lambda: torch.load({str(path)!r}, weights_only=False){contents.saved_as[1]}"
        trusted = f"FILE.py has the lines that built NAME, or, only if you trust the file, {load}"
        return f"--model FILE.py:NAME --checkpoint {file}   {trusted}"
    if module.startswith("ultralytics."):
        stem = path.stem if path.stem.startswith(("yolo", "rtdetr")) else "NAME"
        cfg = shlex.quote(f"cfg={stem}.yaml")
        return f"--model {module}:{name} --model-arg {cfg} --checkpoint {file}"
    source = Path(f"{module.replace('.', '/')}.py")
    if module == "__main__":  # the script that saved it
        source = file_with(name) or source
    is_installed = module != "__main__" and find_spec(module.partition(".")[0]) is not None
    where = str(source) if source.is_file() else module if is_installed else "FILE.py"
    return f"--model {shlex.quote(f'{where}:{name}')} --checkpoint {file}"
