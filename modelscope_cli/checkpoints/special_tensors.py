"""Tensors whose values are not the numbers in one storage, as torch rebuilds them. Standard library."""

from dataclasses import replace
from typing import Any

from modelscope_cli.checkpoints.entries import checked_shape
from modelscope_cli.checkpoints.pickle_machine import Global, Opaque
from modelscope_cli.checkpoints.tensor_refs import TensorRef, dtype_of, strided


def quantized(storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> TensorRef:
    return replace(strided(storage, offset, size, stride, None), special="quantized")


def meta(dtype: Any, size: Any, *_: Any) -> TensorRef:
    return TensorRef(checked_shape(size), dtype_of(dtype))


def sparse(layout: Any, data: Any) -> TensorRef | None:
    """`data` is the places, the values and the size; of compressed layouts, both kinds of places."""
    parts = [part for part in data if isinstance(part, TensorRef)]
    sizes = [part for part in data if isinstance(part, tuple | list)]
    if not parts or not sizes:
        return None
    name = layout.args[0] if isinstance(layout, Opaque) and layout.args else layout
    kind = str(name).removeprefix("torch.sparse_").upper()
    held = sum(part.nbytes for part in parts)
    return TensorRef(checked_shape(sizes[0]), parts[-1].dtype, special=f"sparse ({kind})", held=held)


def nested(buffer: Any, *_: Any) -> TensorRef | None:
    return replace(buffer, special="nested") if isinstance(buffer, TensorRef) else None


def jagged(parts: Any) -> TensorRef | None:
    """A nested tensor as a class of its own, which is made of its values and where each part begins."""
    held = [part for part in parts.values() if isinstance(part, TensorRef)]
    return replace(held[0], special="nested", held=sum(part.nbytes for part in held)) if held else None


def wrapper(kind: Any, dtype: Any, size: Any, *_: Any, state: Any = None) -> TensorRef:
    """A tensor that is made of others, of which only the code of its class makes values.

    That of a DTensor is its own part of the whole, which may be all of it.
    """
    name = kind.name if isinstance(kind, Global) else "an unknown class"
    attributes = _attributes(state)
    local, shape = attributes.get("_local_tensor"), checked_shape(size)
    if isinstance(local, TensorRef) and local.special is None and name.endswith(".DTensor"):
        if local.shape == shape and not _is_partial(attributes.get("_spec")):
            return local
        return replace(local, special="the part of a DTensor that one rank had")
    parts = [part for part in attributes.values() if isinstance(part, TensorRef)]
    return TensorRef(
        shape, dtype_of(dtype), special=f"of class {name}", held=sum(part.nbytes for part in parts)
    )


def _attributes(state: Any) -> dict[Any, Any]:
    """What `__setstate__` would be given: a dict, or that of slots beside it."""
    found: dict[Any, Any] = {}
    for part in state if isinstance(state, tuple) else [state]:
        found.update(part if isinstance(part, dict) else {})
    return found


def _is_partial(spec: Any) -> bool:
    """Whether the values are still to be summed over ranks; so, too, where nobody can tell."""
    placements = (
        spec.state.get("placements") if isinstance(spec, Opaque) and isinstance(spec.state, dict) else None
    )
    if not isinstance(placements, tuple):
        return True
    names = [place.name.rpartition(".")[2] for place in placements if isinstance(place, Opaque)]
    return len(names) < len(placements) or not {"Shard", "Replicate"}.issuperset(names)
