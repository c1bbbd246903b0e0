"""Find the state dict in the content of a pickle, and summarise everything else. Standard library."""

import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from modelscope_cli.checkpoints.entries import Contents, NameJoiner, TensorEntry
from modelscope_cli.checkpoints.pickle_machine import Global, Opaque
from modelscope_cli.errors import UsageError
from modelscope_cli.plain_text import plain
from modelscope_cli.records.naming import counted, some, with_article

IsTensor = Callable[[Any], bool]
# A path as (path of the container, key), which takes less memory than a full tuple.
Path = tuple["Path", Any] | None

_DEEPEST = 100


def walk(value: Any, is_tensor: IsTensor) -> Iterator[tuple[Path, Any]]:
    """Yield every value that is not a container, with its path; each container is visited once."""
    visited: set[int] = set()
    waiting: list[tuple[Path, int, Any]] = [(None, 0, value)]
    while waiting:
        path, depth, value = waiting.pop()
        if is_tensor(value) or not isinstance(value, dict | list | tuple | Opaque):
            yield path, value
        elif id(value) not in visited and depth <= _DEEPEST:
            visited.add(id(value))
            waiting += reversed([((path, key), depth + 1, item) for key, item in _items(value)])


def all_tensors(content: Any, is_tensor: IsTensor, names: NameJoiner) -> dict[str, Any]:
    """Return every tensor in nested containers by its keys joined with dots."""
    tensors: dict[str, Any] = {}
    for path, value in walk(content, is_tensor):
        if is_tensor(value):
            name = _name(path, names)
            while name in tensors:  # for 1 and "1"
                name = names.join(name, "_")
            tensors[name] = value
    return tensors


def first_key(path: Path) -> Any:
    key = None
    while path is not None:
        path, key = path
    return key


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Opaque):
        return itertools.chain(_pairs(value.args), _pairs(value.state), value.items.items())
    return _pairs(value)


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def _name(path: Path, names: NameJoiner) -> str:
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(str(key))
    return names.join(*itertools.chain.from_iterable((".", key) for key in reversed(keys)))[1:] or "tensor"


# Usual keys of the names of the classes.
_NAMES = (
    "classes",
    "class_names",
    "classnames",
    "categories",
    "names",
    "labels",
    "class_to_idx",
    "idx_to_class",
    "id2label",
)
# Usual keys of the size of the training images, and of the settings of a training.
_SIZES = ("image_size", "img_size", "imgsz", "input_size", "train_crop_size", "crop_size", "resolution")
_SETTINGS = ("args", "hyper_parameters", "datamodule_hyper_parameters", "hparams", "config", "cfg", "opt")
# Usual keys of a state dict, the likeliest first.
_WRAPPERS = ("state_dict", "model", "model_state_dict", "ema", "module")
_MAX_DEPTH = 4
_N_NAMED = 8
_MAX_SUGGESTED = 3
_MAX_COMPARED = 1000
_MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class Taken:
    """The selected part of a checkpoint."""

    path: tuple[str, ...]  # its keys; empty for the whole content
    content: Any  # the value there
    named: dict[str, Any]  # its named tensors
    beside: tuple[tuple[str, Any], ...]  # the other content of the checkpoint, by name
    others: tuple[str, ...]  # other keys with named tensors, as for `--key`

    def note(self) -> str | None:
        """Return a note on what was selected; None if it is everything."""
        if not self.path and not self.beside:
            return None
        subject = f"'{_cut('.'.join(self.path))}'" if self.path else counted(len(self.named), "tensor")
        unread = [_cut(name) for name, value in self.beside if class_names({name: value}) is None]
        others = ", ".join(unread[:_N_NAMED]) + " ..." * (len(unread) > _N_NAMED)
        text = f"using {subject}" + (f"; not read: {others}" if unread else "")
        keys = " or ".join(f"--key {_cut(key)}" for key in self.others[:_MAX_SUGGESTED])
        return f"{text}; choose another with {keys}" if keys else text


def class_names(content: Any) -> tuple[str, tuple[str, ...]] | None:
    """Return the key and the names of the classes, in order, that a script saved with the weights or settings."""
    content = content.state or content.items if isinstance(content, Opaque) else content
    if not isinstance(content, Mapping):
        return None
    for key, value in content.items():
        if not isinstance(key, str) or key.lower() not in _NAMES:
            continue
        names = value
        if isinstance(value, Mapping):
            is_by_name = all(isinstance(index, int) for index in value.values())
            by_index = {index: name for name, index in value.items()} if is_by_name else value
            names = [by_index.get(index, by_index.get(str(index))) for index in range(len(value))]
        is_list = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        if is_list and len({*names}) == len(names) > 1:
            return key, tuple(names)
    found = ((key, class_names(content.get(key))) for key in _SETTINGS)
    return next(((f"{key}.{one[0]}", one[1]) for key, one in found if one), None)


def image_size(content: Any) -> int | None:
    """Return the side of square training images that a script saved beside the weights or in its settings."""
    content = content.state or content.items if isinstance(content, Opaque) else content
    if not isinstance(content, Mapping):
        return None
    for value in filter(None, map(content.get, _SIZES)):
        sides = value[-2:] if isinstance(value, list | tuple) else [value]
        if len({*map(str, sides)}) == 1 and str(sides[0]).isdecimal():
            return int(sides[0])
    return next(filter(None, (image_size(content.get(key)) for key in _SETTINGS)), None)


def find_state(content: Any, is_tensor: IsTensor, key: str | None = None, source: str = "") -> Taken:
    """Return the named tensors inside `content`: those under `key`, else at their usual place.

    Args:
        key: names joined by dots, or a prefix of tensor names: `model.ema`, `discriminator`.
        source: the file, for the message.
    """
    if key is None:
        return _unwrapped(content, is_tensor, (), _any_wrapper)
    path = next(_paths(content, key), None)
    if path is None:
        return _prefixed(content, is_tensor, key, source)
    target = content
    beside: list[tuple[str, Any]] = []
    for step in path:
        beside += [(str(other), value) for other, value in target.items() if other != step]
        target = target[step]
    inner = _unwrapped(target, is_tensor, tuple(map(str, path)), _known_wrapper)
    others = tuple(other for other in _holders(content, is_tensor) if other != str(path[0]))
    if inner.named:
        return Taken(inner.path, inner.content, inner.named, (*beside, *inner.beside), others)
    named = all_tensors(target, is_tensor, NameJoiner())
    if not named:
        raise UsageError(f"'--key {key}' of '{source}' contains no tensors", "leave out --key")
    return Taken(tuple(map(str, path)), named, named, tuple(beside), others)


def tensors_in(content: Any, is_tensor: IsTensor) -> dict[str, Any]:
    """Return the tensors in `content` by name."""
    if not isinstance(content, Mapping):
        return {}
    return {key: value for key, value in content.items() if isinstance(key, str) and is_tensor(value)}


def no_such_key(key: str, nested: list[str], others: list[str], source: str) -> UsageError:
    """Return the error for a missing key, which lists the existing ones, the nearest first.

    Args:
        nested: keys of what holds tensors.
        others: further keys, of tensors too.
    """
    keys = [*nested, *others]
    keys = list(dict.fromkeys(keys))[:_MAX_COMPARED]
    near = {name: difflib.SequenceMatcher(None, key, name[:_MAX_NAME]).ratio() for name in keys}
    keys.sort(key=lambda name: -near[name] if near[name] > 0.5 else 0)  # else in order, the likeliest first
    holds = f", which holds {some(map(_cut, keys), _N_NAMED)}" if keys else ""
    message = f"'--key {key}' is not in '{source}'{holds}"
    is_meant = bool(nested) or (bool(keys) and near[keys[0]] > 0.5)
    return UsageError(message, f"--key {_cut(keys[0])}" if is_meant else "leave out --key")


def _unwrapped(
    content: Any,
    is_tensor: IsTensor,
    path: tuple[str, ...],
    find_wrapper: Callable[[Any, IsTensor], str | None],
) -> Taken:
    beside: list[tuple[str, Any]] = []
    others: list[str] = []
    depth = len(path) + _MAX_DEPTH
    while len(path) < depth and (key := find_wrapper(content, is_tensor)) is not None:
        beside += [(str(other), value) for other, value in content.items() if other != key]
        others += [".".join((*path, other)) for other in _holders(content, is_tensor) if other != key]
        path = (*path, key)
        content = content[key]
    named = tensors_in(content, is_tensor)
    if isinstance(content, Mapping):
        beside += [(str(key), value) for key, value in content.items() if key not in named]
        others += [".".join((*path, other)) for other in _holders(content, is_tensor)]
    return Taken(path, content, named, tuple(beside), tuple(others))


def _cut(name: str) -> str:
    return plain(name[:_MAX_NAME])


def _paths(content: Any, key: str) -> Iterator[tuple[Any, ...]]:
    """Yield the nested keys that, joined with dots, equal `key`."""
    if not isinstance(content, Mapping):
        return
    for name, value in content.items():
        word = str(name) if isinstance(name, str | int) else None
        if word == key:
            yield (name,)
        elif word is not None and key.startswith(f"{word}."):
            yield from ((name, *rest) for rest in _paths(value, key[len(word) + 1 :]))


def _prefixed(content: Any, is_tensor: IsTensor, key: str, source: str) -> Taken:
    """Select the tensors of the state dict whose names begin with `key` and a dot."""
    for name, value in content.items() if isinstance(content, Mapping) else ():
        if isinstance(value, Mapping) and key.startswith(f"{name}."):
            with suppress(UsageError):
                part = _prefixed(value, is_tensor, key.removeprefix(f"{name}."), source)
                return replace(part, path=(str(name), *part.path))
    unwrapped = _unwrapped(content, is_tensor, (), _any_wrapper)
    begin = key.removeprefix(".".join((*unwrapped.path, ""))) + "."
    named = {name[len(begin) :]: value for name, value in unwrapped.named.items() if name.startswith(begin)}
    words = list(dict.fromkeys(name.partition(".")[0] for name in unwrapped.named))
    if not named:
        keys = [str(name) for name in content] if isinstance(content, Mapping) else []
        raise no_such_key(key, [*unwrapped.path[:1], *unwrapped.others], [*keys, *words], source)
    other_prefixes = [(f"{word}.*", None) for word in words if word != begin.partition(".")[0]]
    path = (*unwrapped.path, begin[:-1])
    return Taken(path, named, named, (*other_prefixes, *unwrapped.beside), unwrapped.others)


def _holders(content: Mapping[Any, Any], is_tensor: IsTensor) -> list[str]:
    """Return the keys with named tensors, directly or at their usual place."""
    # Each value once: a hostile file may have one large dict under very many keys.
    keys = {id(value): key for key, value in reversed(list(content.items())) if isinstance(key, str)}
    return [key for key in reversed(list(keys.values())) if _holds_tensors(content[key], is_tensor)]


def _known_wrapper(content: Any, is_tensor: IsTensor) -> str | None:
    """Return the usual key that holds a state dict here; None without one."""
    if not isinstance(content, Mapping):
        return None
    return next((key for key in _WRAPPERS if _holds_tensors(content.get(key), is_tensor)), None)


def _any_wrapper(content: Any, is_tensor: IsTensor) -> str | None:
    """Return the key of the tensors; None if `content` holds them itself."""
    wrapper = _known_wrapper(content, is_tensor)
    if wrapper is not None or not isinstance(content, Mapping) or tensors_in(content, is_tensor):
        return wrapper
    holders = _holders(content, is_tensor)
    return next((key for key in holders if tensors_in(content[key], is_tensor)), None)


def _holds_tensors(content: Any, is_tensor: IsTensor, depth: int = 0) -> bool:
    if not isinstance(content, Mapping) or depth > _MAX_DEPTH:
        return False
    return any(isinstance(key, str) and is_tensor(value) for key, value in content.items()) or any(
        _holds_tensors(content.get(key), is_tensor, depth + 1) for key in _WRAPPERS
    )


# Class of the packed weights of quantized modules.
_PACKED = "torch.ScriptObject"


def state_of_module(value: Any, names: NameJoiner) -> Any:
    """Return the state dict of a pickled `nn.Module`, with packed parameters unchanged; other values unchanged."""
    if not isinstance(value, Opaque) or not isinstance(value.state, dict) or "_modules" not in value.state:
        return value
    state_dict: dict[str, Any] = {}
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:  # a shared module has its tensors under each name
        prefix, module = waiting.pop()
        if not isinstance(module, Opaque):
            continue
        if not isinstance(module.state, dict):
            state_dict[prefix[:-1]] = module
            continue
        state = module.state
        inner = _dict(state, "_modules")
        for key, item in (*_dict(state, "_parameters").items(), *_kept(state).items()):
            if item is not None:
                state_dict[names.join(prefix, str(key))] = item
        for key, item in state.items():
            if isinstance(item, Opaque) and item.name == _PACKED:
                state_dict[names.join(prefix, str(key))] = item
        waiting += [(names.join(prefix, str(key), "."), item) for key, item in reversed(inner.items())]
    return state_dict


def _dict(state: dict[Any, Any], key: str) -> dict[Any, Any]:
    value = state.get(key)
    return value if isinstance(value, dict) else {}


def _kept(state: dict[Any, Any]) -> dict[Any, Any]:
    """Return the persistent buffers of a module's state."""
    buffers, passing = _dict(state, "_buffers"), state.get("_non_persistent_buffers_set")
    if not isinstance(passing, list) or len(passing) > len(buffers):
        return buffers
    left_out = {key for key in passing if isinstance(key, str)}
    return {key: item for key, item in buffers.items() if key not in left_out}


# Describes a named tensor.
ToEntry = Callable[[str, Any], TensorEntry]

_MAX_TEXT = 60
_N_CLASSES = 3
_INNER = ("module", "_orig_mod")  # as DataParallel and torch.compile call the module that they wrap
# Limits for other content: values described, and values inspected in total.
_MAX_BESIDE = 50
_MAX_INSIDE = 1_000_000


def lay_out(
    content: Any, is_tensor: IsTensor, to_entry: ToEntry, key: str | None, contents: Contents
) -> Contents:
    """Return `contents` with the tensors under `key`, else of the state dict, else all tensors."""
    names = NameJoiner()
    saved, content = content, _with_states(content, names)
    is_script = isinstance(saved, Opaque) and saved.name.startswith("__torch__.")  # a module of TorchScript
    state = all_tensors(content, is_tensor, names) if is_script else content
    part = find_state(state, is_tensor, key, str(contents.path))
    named, note, beside = part.named, part.note(), [pair for pair in part.beside if not is_tensor(pair[1])]
    if not named:  # no state dict
        named, note = all_tensors(part.content, is_tensor, names), None
    tensors = tuple(to_entry(name, value) for name, value in named.items())
    limit = _MAX_INSIDE // max(1, len(beside))
    words = {
        plain(name)[:_MAX_TEXT]: _names_in(name, value) or describe(value, is_tensor, limit)
        for name, value in beside[:_MAX_BESIDE]
    }
    if len(beside) > _MAX_BESIDE:
        words["..."] = f"{len(beside) - _MAX_BESIDE:,} more"
    inside = _inside(part.content, part.named, is_tensor)
    size, whole = image_size(dict(beside)), _saved_module(saved, part.path)
    found = replace(contents, image_size=size, classes=class_names(content), saved_as=whole)
    return replace(found, tensors=tensors, beside=words, note=note, inside=inside)


def under(contents: Contents, key: str | None) -> Contents:
    """Return the part of a flat checkpoint under a key: the tensors whose names begin with it."""
    if key is None:
        return contents
    flat = {tensor.name: tensor for tensor in contents.tensors}

    def is_entry(value: Any) -> bool:
        return isinstance(value, TensorEntry)

    laid_out = lay_out(flat, is_entry, lambda name, entry: replace(entry, name=name), key, contents)
    return replace(contents, tensors=laid_out.tensors, note=laid_out.note)


def describe(value: Any, is_tensor: IsTensor, limit: int = _MAX_INSIDE) -> str:
    """Describe a value in a few words: itself if short, else a summary of its content."""
    if isinstance(value, str):
        return repr(value if len(value) <= _MAX_TEXT else value[: _MAX_TEXT - 1] + "…")
    if isinstance(value, int) and value.bit_length() > 64:
        return "a very large number"
    if isinstance(value, int | float) or value is None:
        return str(value)
    if isinstance(value, Global):
        return plain(value.name)[:_MAX_TEXT]
    inside = itertools.islice(walk(value, is_tensor), limit)
    n = Counter("tensor" if is_tensor(item) else "number" for _, item in inside if not isinstance(item, str))
    kind = plain(value.name)[:_MAX_TEXT] if isinstance(value, Opaque) else ""
    counts = [counted(n[noun], noun) for noun in ("tensor", "number") if n[noun]]
    return ", ".join(filter(None, [kind, *counts])) or with_article(type(value).__name__)


def _names_in(key: str, value: Any) -> str:
    """Return the names of the classes in a few words, `6 names (red, green, blue, ...)`; empty without any."""
    _, names = class_names({key: value}) or ("", ())
    shown = ", ".join(_cut(name) for name in names[:_N_CLASSES]) + ", ..." * (len(names) > _N_CLASSES)
    return f"{len(names)} names ({shown})" if names else ""


def _saved_module(content: Any, path: tuple[str, ...]) -> tuple[str, str]:
    """Return the class of the pickled module at a path, inside its wrappers, and the Python that reaches it."""
    at = ""
    for key in path:
        at += f".{key}" if isinstance(content, Opaque) else f"[{key!r}]"
        content = _attributes(content)
        content = content.get(key) if isinstance(content, Mapping) else None
    while isinstance(content, Opaque) and isinstance(content.state, dict) and "_modules" in content.state:
        inner = next((key for key in _INNER if key in _dict(content.state, "_modules")), None)
        if inner is None or not content.name.startswith(("torch.nn.parallel.", "torch._dynamo.")):
            return plain(content.name), at
        at, content = f"{at}.{inner}", content.state["_modules"][inner]
    return "", ""


def _inside(content: Any, named: dict[str, Any], is_tensor: IsTensor) -> tuple[str, ...]:
    """Return the names in a state dict that are not tensors but contain some."""
    if not named or not isinstance(content, dict):
        return ()
    others = {key: value for key, value in content.items() if key not in named}
    keys = dict.fromkeys(first_key(path) for path, value in walk(others, is_tensor) if is_tensor(value))
    return tuple(plain(str(key)) for key in keys)


def _with_states(content: Any, names: NameJoiner) -> Any:
    """Replace pickled modules and dict subclasses, at the top or up to two levels down, by their content."""
    content = _attributes(_plain(content, names))
    if not isinstance(content, dict):
        return content
    replaced: dict[int, Any] = {}
    for value in content.values():
        if isinstance(value, Opaque) and id(value) not in replaced:
            replaced[id(value)] = _plain(value, names)
        elif isinstance(value, dict) and id(value) not in replaced:
            replaced[id(value)] = {key: _plain(one, names) for key, one in value.items()}
    return {key: replaced.get(id(value), value) for key, value in content.items()} if replaced else content


def _plain(value: Any, names: NameJoiner) -> Any:
    value = state_of_module(value, names)
    return value.items if isinstance(value, Opaque) and value.items else value


def _attributes(value: Any) -> Any:
    """Return the attributes of an object of another class, such as a trainer."""
    has_names = isinstance(value, Opaque) and isinstance(value.state, dict) and bool(value.state)
    return value.state if has_names else value
