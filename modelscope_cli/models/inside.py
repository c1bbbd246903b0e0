"""Take a model out of what is around it: `torch.compile`, or a class whose `train()` starts a training."""

import inspect
from typing import Any

from torch import nn

from modelscope_cli.errors import CannotRunError


def model_inside(module: nn.Module, name: str | None = None) -> nn.Module:
    """Return the module that was given to `torch.compile`, or is all that a trainer holds; any other as it is.

    A trainer is a module whose own `train()` does not switch the mode, such as `ultralytics.YOLO`: neither that nor
    any other of its methods is called.

    Raises:
        CannotRunError: a trainer with several models, or one that is a layer of something else (exit 4).
    """
    name = name or type(module).__name__
    while True:
        if type(module).__name__ == "OptimizedModule":
            module = module.get_submodule("_orig_mod")
        elif not _switches_mode(module):
            module = _only_model(module, name)
        else:
            break
    for layer, one in module.named_modules():
        if not _switches_mode(one):
            message = f"layer '{layer}' of '{name}' is {_trainer(one)}"
            raise CannotRunError(
                message,
                f"--model FILE.py:NAME   a function there that puts the model of '{layer}' in its place",
            )
    return module


def inside_notes(module: nn.Module, inner: nn.Module) -> tuple[str, ...]:
    """Say which model was taken out of what; nothing where it is the same."""
    if inner is module:
        return ()
    if type(module).__name__ == "OptimizedModule":
        return ("torch.compile: the model is inspected uncompiled",)
    return (f"model: the {type(inner).__name__} inside {_trainer(module)}",)


def switch_to_eval(module: nn.Module) -> None:
    """Put a model in eval mode; an `eval()` of its own that does something else is not called."""
    names = _names_in(module.eval)
    is_switch = names is None or bool({"super", "Module"} & names)
    module.eval() if is_switch else module.train(False)


def _switches_mode(module: nn.Module) -> bool:
    """Tell whether `module.train(False)` does what `nn.Module.train` does, by its signature and the names in it."""
    names = _names_in(module.train)
    if names is None:
        return True
    first, *others = [*inspect.signature(module.train).parameters.values(), None]
    if first is None or any(one and one.default is one.empty and one.kind not in _ANY for one in others):
        return False
    hands_on = bool({"super", "Module", "training"} & names)
    if first.kind is first.VAR_POSITIONAL:
        return hands_on
    if first.kind is first.KEYWORD_ONLY or first.kind is first.VAR_KEYWORD:
        return False
    is_bool = isinstance(first.default, bool) or first.annotation in (bool, "bool")
    is_any = first.default is first.empty and first.annotation is first.empty
    return (first.name == "mode" and (is_bool or is_any)) or (is_bool and hands_on)


_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _names_in(method: Any) -> frozenset[str] | None:
    """Return the names that a method uses; None of torch's own, and of one that is not written in Python."""
    function = inspect.unwrap(getattr(method, "__func__", method))
    if function in (nn.Module.train, nn.Module.eval) or not hasattr(function, "__code__"):
        return None
    return frozenset(function.__code__.co_names)


def _only_model(module: nn.Module, name: str) -> nn.Module:
    """Return the one model that a trainer holds."""
    attributes = {**vars(module), **dict(module.named_children())}
    held = {key: one for key, one in attributes.items() if isinstance(one, nn.Module)}
    models = {key: one for key, one in held.items() if [*one.parameters(), *one.buffers()]} or held
    has_own = bool([*module.parameters(recurse=False), *module.buffers(recurse=False)])
    if len({id(one) for one in models.values()}) == 1 and not has_own:
        return next(iter(models.values()))
    what = f"its models are {', '.join(models)}" if models else "it holds no model"
    what = "it has parameters of its own beside them" if has_own and models else what
    inside = f".{next(iter(models), 'model')}"
    message = f"'{name}' is {_trainer(module)}; {what}"
    hint = f"--model FILE.py:NAME   a function there that returns the model in it, its {inside}"
    raise CannotRunError(message, hint)


def _trainer(module: nn.Module) -> str:
    kind = type(module).__name__
    return f"'{kind}', whose train() is not nn.Module's switch of mode and is not called"
