"""What torchvision publishes about its models."""

from fnmatch import fnmatchcase

from modelscope_cli.errors import UsageError, nearest
from modelscope_cli.models.names import model_names
from modelscope_cli.records.models import Catalogue, ModelEntry
from modelscope_cli.records.run import invocation, versions


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


def list_models(pattern: str | None = None) -> Catalogue:
    """Return torchvision's models with what is published about their default weights.

    Args:
        pattern: part of a name, or a glob: `resnet`, `vit_*`.

    Raises:
        UsageError: no such name (exit 2 on the command line).
    """
    names = match_names(pattern)
    return Catalogue(versions(), invocation().argv, _entries(names))


def _entries(names: tuple[str, ...]) -> tuple[ModelEntry, ...]:
    from modelscope_cli.inputs.default_shape import natural_shapes
    from modelscope_cli.models.pretrained import default_weights, weights_of
    from modelscope_cli.models.zoo import family_of

    entries = []
    for name in names:
        family = family_of(name)
        weights = default_weights(name)
        # Detection models take pictures of any size, and resize them by themselves.
        shapes = natural_shapes(family, weights.transforms(), None, 1) if family != "detection" else ()
        entries.append(
            ModelEntry(
                name=name,
                family=family,
                params=weights.meta["num_params"],
                macs=round(weights.meta["_ops"] * 1e9),
                input_shapes=shapes,
                weights=tuple(key for key in weights_of(name) if key != "DEFAULT"),
                default_weights=weights.name,
            )
        )
    return tuple(entries)
