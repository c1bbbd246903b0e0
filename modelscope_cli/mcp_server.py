"""A server of the Model Context Protocol: the public functions as tools for coding agents.

`pip install 'modelscope-cli[mcp]'` and `python -m modelscope_cli.mcp_server`, which talks on stdin and stdout.
Tools write no file and use no network; `--allow-writes` adds what does.
"""

import argparse
import functools
import inspect
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import modelscope_cli as ms
from modelscope_cli.errors import ModelscopeError
from modelscope_cli.report.formats import render_brief, render_json
from modelscope_cli.report.views import sheet_of

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

_READING = (
    "summary stats grads check check_images weights scan predict doctor explain ablate diff lrfind read"
)
_WRITING = "watch train featuremaps"
# Keywords that write a file or run one that is not the model, and those that only a caller in Python can give.
_WRITES = "out force plot convert update_baseline save_tensors hook b_hook callback log_to"
_WRITES += " resume keep"
_PYTHON = "progress share optimizer loaders"
# Types by the words of an annotation; the last table replaces those that name classes of Python, such as a module.
_KINDS: dict[str, Any] = {"str": str, "bool": bool, "int": int, "float": float, "None": None}
_KINDS |= {"Sequence": list[Any], "Mapping": dict[str, Any]}
_KINDS_OF = {"model": "str", "a": "str", "b": "str | None", "what": "str", "inputs": "str | Sequence | None"}
_INSTRUCTIONS = (
    "Looks inside PyTorch vision models. A model is a torchvision name, timm:NAME, a checkpoint, or file.py:Class, "
    "which runs that file; inputs are image files or folders, or input_shape '1,3,224,224' for noise. Answers have "
    "the verdict first; detail='json' has every number. 'Not judged' is not a pass."
)


def make_server(*, allow_writes: bool = False) -> "MCPServer":
    """Return the server.

    Args:
        allow_writes: also offer the functions and keywords that write files, and `watch`, which runs a script.
    """
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.tools import Tool
    from mcp.types import ToolAnnotations

    tools = []
    for name in f"{_READING} {_WRITING if allow_writes else ''}".split():
        function = getattr(ms, name)
        tool = Tool.from_function(
            _call(function, allow_writes=allow_writes),
            name,
            description=(inspect.getdoc(function) or name).partition("\nRaises:")[0],
            annotations=ToolAnnotations(read_only_hint=not allow_writes, open_world_hint=False),
            structured_output=False,
        )
        tool.fn_metadata.arg_model.model_config["extra"] = "forbid"  # else a misspelt keyword is ignored
        tool.fn_metadata.arg_model.model_rebuild(force=True)
        tool.parameters["additionalProperties"] = False
        tools.append(tool)
    return MCPServer("modelscope", instructions=_INSTRUCTIONS, tools=tools, log_level="WARNING")


def _call(function: Callable[..., Any], *, allow_writes: bool) -> Callable[..., str]:
    """Return a function with the keywords that a tool has, which returns the result as text."""

    from mcp.server.mcpserver.exceptions import ToolError

    def call(detail: str = "brief", **arguments: Any) -> str:
        try:
            with redirect_stdout(sys.stderr):  # stdout is the protocol's, and models may print
                record = function(**arguments)
        except ModelscopeError as error:
            raise ToolError(f"{error.message}; hint: {error.hint}") from error
        return render_json(record.to_dict()) if detail == "json" else render_brief(sheet_of(record))

    parameters = list(_parameters(function, allow_writes=allow_writes))
    detail = inspect.Parameter(
        "detail", inspect.Parameter.KEYWORD_ONLY, default="brief", annotation=Literal["brief", "json"]
    )
    call.__signature__ = inspect.Signature([*parameters, detail])  # type: ignore[attr-defined]
    return call


def _parameters(function: Callable[..., Any], *, allow_writes: bool) -> Iterator[inspect.Parameter]:
    left_out = f"{_PYTHON} {'' if allow_writes else _WRITES}".split()
    for one in inspect.signature(function).parameters.values():
        if one.kind is inspect.Parameter.VAR_POSITIONAL or one.name in left_out:
            continue
        text = _KINDS_OF.get(one.name, str(one.annotation))
        kinds = [kind for word, kind in _KINDS.items() if re.search(rf"\b{word}\b", text)]
        if kinds:
            kind = functools.reduce(operator.or_, kinds)
            yield one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind)


def main() -> None:
    """Serve until stdin is closed."""
    parser = argparse.ArgumentParser("python -m modelscope_cli.mcp_server", description=__doc__)
    parser.add_argument("--allow-writes", action="store_true", help="also offer what writes files, and watch")
    allow_writes = parser.parse_args().allow_writes
    if find_spec("mcp") is None:
        sys.exit("error: the package mcp is not installed\n\nhint: pip install 'modelscope-cli[mcp]'")
    if not allow_writes:
        os.environ["MSCOPE_OFFLINE"] = "1"
        sys.dont_write_bytecode = True  # of a file with a model
    make_server(allow_writes=allow_writes).run("stdio")


if __name__ == "__main__":
    main()
