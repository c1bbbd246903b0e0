"""Groups of options: a frozen dataclass in the signature of a command stands for one option a field."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command as Typer reads it: each parameter that is a group, as the options of its fields.

    The default of such a parameter is a group whose values are the options' defaults. When the command is called
    the options are gathered again, so that it sees typed groups and never text. A field that its group is not
    made with is not an option.
    """
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    spelled: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        kind = hints[parameter.name]
        if not dataclasses.is_dataclass(kind):
            spelled.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind))
            continue
        groups[parameter.name] = kind  # type: ignore[assignment]
        inner = get_type_hints(kind, include_extras=True)
        for field in _typed(kind):
            default = getattr(parameter.default, field.name)
            spelled.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=inner[field.name],
                )
            )

    @functools.wraps(command)
    def call(**typed: Any) -> Any:
        gathered = {
            name: kind(**{field.name: typed.pop(field.name) for field in _typed(kind)})
            for name, kind in groups.items()
        }
        return command(**typed, **gathered)

    call.__signature__ = signature.replace(parameters=spelled)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in spelled}
    return call


def said(*groups: Any) -> dict[str, Any]:
    """Return the options of groups as the keywords of a public function, which have the same names and defaults.

    What nobody gave, None, is left out: the function's own default is as good as nothing then, too.
    """
    values = {field.name: getattr(group, field.name) for group in groups for field in _typed(group)}
    return {name: value for name, value in values.items() if value is not None}


def _typed(group: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(group) if field.init]
