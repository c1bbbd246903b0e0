"""List torchvision's and timm's models with their published metadata."""

from fnmatch import fnmatchcase

from modelscope_cli.errors import UsageError, with_nearest
from modelscope_cli.models.hubs import check_package
from modelscope_cli.models.names import model_names, timm_names
from modelscope_cli.records.listings import Catalogue, ModelEntry
from modelscope_cli.records.run import invocation, versions

_TIMM = "timm:"


def match_names(pattern: str | None) -> tuple[str, ...]:
    """Return the names that contain `pattern` or match it as a glob; timm's after `timm:`."""
    if pattern is None:
        return model_names()
    names = model_names()
    if pattern.startswith(_TIMM):
        check_package("timm", pattern)
        names = tuple(_TIMM + name for name in timm_names())
    word = pattern.lower().removeprefix(_TIMM)
    is_glob = any(mark in word for mark in "*?[")
    bare = ((name, name.removeprefix(_TIMM)) for name in names)
    matches = tuple(name for name, stem in bare if (fnmatchcase(stem, word) if is_glob else word in stem))
    if not matches:
        hint = "modelscope summary --list" + (" timm:" if word and pattern.startswith(_TIMM) else "")
        raise UsageError(with_nearest(f"no model matches '{pattern}'", pattern, names), hint)
    return matches


def list_models(pattern: str | None = None) -> Catalogue:
    """Return torchvision's models, or timm's, with what is published about their default weights; none is built.

    Args:
        pattern: part of a name, or a glob: resnet, 'vit_*', timm:vit.

    Raises:
        UsageError: no such name, or timm is not installed (exit 2 on the command line).
    """
    names = match_names(pattern)
    is_timm = pattern is not None and pattern.startswith(_TIMM)
    entries = tuple(map(_entry_of_timm, names)) if is_timm else _entries(names)
    return Catalogue(versions(), invocation().argv, entries)


def _entry_of_timm(name: str) -> ModelEntry:
    from modelscope_cli.models.from_libraries import family_in_timm, published, tags_of

    bare_name = name.removeprefix(_TIMM)
    cfg, tags = published(bare_name), tags_of(bare_name)
    return ModelEntry(
        name=name,
        family=family_in_timm(bare_name),
        params=None,
        macs=None,
        input_shapes=((1, *cfg.input_size),),
        weights=tags,
        default_weights=cfg.tag or (tags[0] if tags else None),
    )


def _entries(names: tuple[str, ...]) -> tuple[ModelEntry, ...]:
    from modelscope_cli.inputs.model_config import natural_shapes
    from modelscope_cli.models.zoo import default_weights, family_of, weights_of

    entries = []
    for name in names:
        family = family_of(name)
        weights = default_weights(name)
        # Detection models take images of any size and resize them.
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
