"""From the words of a command line to the values that a command is called with.

Typer has every value checked by pydantic, whose import takes longer than many a command. Defaults need no check,
nor do flags, texts and names of files; whatever else there is, and every error, is left to Typer.
"""

import os
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from typer.core import TyperGroup


class _IsForTyperError(Exception):
    """A value has to be checked, a page to be shown, or something is wrong."""


class LeanParsing:
    """For a command of Typer's, or their group: values that need no check are taken as they are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        parser = self.make_parser(ctx)  # type: ignore[attr-defined]
        typed, rest, _ = parser.parse_args(args=[*args])
        params = self.get_params(ctx)  # type: ignore[attr-defined]
        found = {param.name: param.consume_value(ctx, typed) for param in params}
        values = {name: value for name, (value, _) in found.items()}
        if not ctx.resilient_parsing:  # else a word is to be completed, and nobody looks at the others
            try:
                values = self._plain(params, values, rest)
            except _IsForTyperError:
                return super().parse_args(ctx, args)  # type: ignore[misc]
        for param in params:
            ctx.set_parameter_source(param.name, found[param.name][1])
            if param.expose_value:
                ctx.params[param.name] = values[param.name]
        ctx._opt_prefixes.update(parser._opt_prefixes)
        if isinstance(self, TyperGroup):
            ctx._protected_args, rest = rest[:1], rest[1:]
        ctx.args = rest
        return rest

    def _plain(self, params: list[Any], values: dict[str, Any], rest: list[str]) -> dict[str, Any]:
        if bool(rest) != isinstance(self, TyperGroup):  # a word too many, or no command
            raise _IsForTyperError
        kinds = get_type_hints(self.callback)  # type: ignore[attr-defined]
        return {param.name: _plain(param, values[param.name], kinds.get(param.name)) for param in params}


def _plain(param: Any, value: Any, kind: Any) -> Any:
    """Return a value as Typer would, where there is no doubt about it."""
    if param.is_eager and not value:  # --help, --version
        return value
    if param.is_eager or (param.required and value is None):
        raise _IsForTyperError
    kinds = get_args(kind) or (kind,)  # of `Path | None`, both
    if isinstance(value, tuple):
        value = list(value)
    if value is None or isinstance(value, tuple(get_origin(one) or one for one in kinds)):
        return value
    if Path in kinds and isinstance(value, str) and (os.access(value, os.R_OK) or not os.path.exists(value)):
        return Path(value)
    raise _IsForTyperError
