"""The tree of a model: modules in modules as their names say, each layer coloured by a number of its row."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from modelscope_cli.report.labels import shortened
from modelscope_cli.report.page.html import Html, element, joined
from modelscope_cli.report.shades import Shade, levels

_DEEPEST = 40  # modules in one another; what is deeper stands there with its whole name


@dataclass(slots=True)
class _Node:
    """A module: what it contains by name, and its own rows."""

    inside: dict[str, "_Node"] = field(default_factory=dict)
    rows: list[Any] = field(default_factory=list)

    def all_rows(self) -> Iterator[Any]:
        yield from self.rows
        for node in self.inside.values():
            yield from node.all_rows()


def tree(
    rows: Sequence[Any],
    name: Callable[[Any], str],
    anchor: Callable[[Any], str],
    shades: Sequence[Shade],
    is_bad: Callable[[Any], bool],
) -> Html:
    """Return nested lists; the script lets a person choose by which of the `shades` they are coloured."""
    root = _Node()
    for row in rows:
        node = root
        for part in name(row).split(".", _DEEPEST):
            node = node.inside.setdefault(part, _Node())
        node.rows.append(row)
    look = _Look(anchor, shades, [levels(rows, shade) for shade in shades], is_bad)
    return joined([shade_chooser(shades), element("ul", *_children(root, look), class_="tree")])


def shade_chooser(shades: Sequence[Shade]) -> Html:
    """Return a choice of what colours the tree or graph behind it; the script shows it."""
    options = [element("option", shade.name, value=n) for n, shade in enumerate(shades)]
    select = element("select", *options, name="shade", class_="shade")
    return element("label", "colour by ", select, class_="tools", hidden=True)


@dataclass(frozen=True, slots=True)
class _Look:
    anchor: Callable[[Any], str]
    shades: Sequence[Shade]
    levels: Sequence[dict[int, int]]
    is_bad: Callable[[Any], bool]


def _children(node: _Node, look: _Look) -> Iterator[Html]:
    for name, inner in map(_without_single_steps, node.inside.items()):
        leaves = [_leaf(name, row, look) for row in inner.rows]
        if not inner.inside:
            yield from leaves
            continue
        found = sum(look.is_bad(row) for row in inner.all_rows())
        n = sum(1 for _ in inner.all_rows())
        words = element("span", f" {n}" + (f", {found} marked" if found else ""), class_="quiet")
        summary = element("summary", shortened(name), words, class_="bad" if found else None)
        inside = element("ul", *leaves, *_children(inner, look))
        yield element("li", element("details", summary, inside, open=bool(found) or n <= 8))


def _without_single_steps(named: tuple[str, _Node]) -> tuple[str, _Node]:
    """Go down to where there is a choice, or a row: `a.b.c` is one step if there is nothing else in `a` and `b`."""
    name, node = named
    while not node.rows and len(node.inside) == 1:
        ((part, node),) = node.inside.items()
        name = f"{name}.{part}"
    return name, node


def _leaf(name: str, row: Any, look: _Look) -> Html:
    """Say the value in words, so that the colour is not all there is."""
    shade, level = look.shades[0], look.levels[0][id(row)]
    chip = element("span", shade.words(row) or "–", class_=f"chip h{level}")
    every = ";".join(
        f"{level[id(row)]},{one.words(row) or '–'}"
        for level, one in zip(look.levels, look.shades, strict=True)
    )
    link = element(
        "a", shortened(name), href=f"#{look.anchor(row)}", class_="bad" if look.is_bad(row) else None
    )
    return element("li", link, chip, data_shades=every)
