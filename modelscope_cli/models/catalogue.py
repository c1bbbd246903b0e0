"""What torchvision publishes about its models."""

from fnmatch import fnmatchcase

from modelscope_cli.errors import UsageError, nearest
from modelscope_cli.models.names import model_names
from modelscope_cli.records import ModelEntry


def match_names(pattern: str | None) -> tuple[str, ...]:
    """Return the names that contain `pattern`, or match it where it is a glob.

    Raises:
        UsageError: no such name (exit 2).
    """
    names = model_names()
    if pattern is None:
        return names
    word = pattern.lower()
    is_glob = any(mark in word for mark in "*?[")
    found = tuple(name for name in names if (fnmatchcase(name, word) if is_glob else word in name))
    if not found:
        near = nearest(pattern, names)
        raise UsageError(f"no model matches '{pattern}'" + (f": {near}" if near else ""), "modelscope models")
    return found


def list_models(names: tuple[str, ...]) -> tuple[ModelEntry, ...]:
    """Return the published figures of the default weights of each name."""
    from modelscope_cli.inputs.natural import natural_shapes
    from modelscope_cli.models.request import ModelRequest
    from modelscope_cli.models.weights import weights_of
    from modelscope_cli.models.zoo import zoo_architecture

    entries = []
    for name in names:
        family = zoo_architecture(name, {}, 0).family
        every = weights_of(name)
        default = every[0]
        entries.append(
            ModelEntry(
                name=name,
                family=family,
                params=default.meta["num_params"],
                gmacs=default.meta["_ops"],
                input_shape=_input_shape(family, default),
                weights=tuple(weights.name for weights in every),
                classes=len(default.meta.get("categories", ())) or None,
            )
        )
    return tuple(entries)
