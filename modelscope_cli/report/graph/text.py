"""The graph of a model as text: DOT for Graphviz, and Mermaid."""

from collections.abc import Callable

from modelscope_cli.plain_text import plain
from modelscope_cli.report import numbers
from modelscope_cli.report.graph.items import Item, ModelGraph


def to_dot(graph: ModelGraph, name: str, colour: Callable[[Item], str]) -> str:
    """Return the graph in the language of Graphviz. `colour`: of an item, as `#rrggbb`."""
    number = {item: n for n, item in enumerate(graph.top.walk())}
    lines = [
        f"digraph {_quoted(name)} {{",
        '  node [shape=box, style=filled, fillcolor=white, fontname="monospace"];',
    ]
    for item, depth, is_end in graph.top.nested():
        indent = "  " * (depth + 1)
        if is_end:
            lines.append(f"{indent}}}")
        elif item.kind == "box":
            lines.append(f"{indent}subgraph cluster_{number[item]} {{ label={_quoted(_label(item)[0])};")
        else:
            label = "\\n".join(_quoted(line)[1:-1] for line in _label(item))
            lines.append(f'{indent}n{number[item]} [label="{label}", fillcolor="{colour(item)}"];')
    lines += [f"  n{number[source]} -> n{number[target]};" for source, target in graph.edges]
    return "\n".join([*lines, "}", ""])


def to_mermaid(graph: ModelGraph, colour: Callable[[Item], str]) -> str:
    """Return the graph as a Mermaid flowchart. `colour`: of an item, as `#rrggbb`."""
    number = {item: n for n, item in enumerate(graph.top.walk())}
    lines = ["flowchart TB"]
    for item, depth, is_end in graph.top.nested():
        indent = "  " * (depth + 1)
        if is_end:
            lines.append(f"{indent}end")
        elif item.kind == "box":
            lines.append(f'{indent}subgraph s{number[item]}["{_entities(_label(item)[0])}"]')
        else:
            label = "<br/>".join(map(_entities, _label(item)))
            lines.append(f'{indent}n{number[item]}["{label}"]')
            lines.append(f"{indent}style n{number[item]} fill:{colour(item)},color:#000")
    lines += [f"  n{number[source]} --> n{number[target]}" for source, target in graph.edges]
    return "\n".join([*lines, ""])


def _label(item: Item) -> list[str]:
    """Return the lines of an item: its name and type, its output shape, remarks."""
    type_name = item.type if item.type != item.name else ""
    lines = [f"{item.name} {type_name}".rstrip(), numbers.shapes(item.shapes, most=1), *item.marks]
    return [plain(line) for line in lines if line]


def _quoted(words: str) -> str:
    escaped = plain(words).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _entities(words: str) -> str:
    """Escape what Mermaid reads as markup: it has codes of its own, such as `#quot;`."""
    return "".join(one if one.isalnum() or one in " ._-,:()+x/" else f"#{ord(one)};" for one in words)
