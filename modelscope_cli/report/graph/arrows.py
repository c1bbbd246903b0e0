"""The arrows: short ones between what stands beneath each other, and arcs in lanes."""

from modelscope_cli.report.graph.layout import RADIUS, Arc, Layout, Link
from modelscope_cli.report.page.html import Html, element, joined


def arrows(layout: Layout, quiet: str, colour: str) -> Html:
    """Return all of them."""
    links = element("g", *map(_link, layout.links), class_="links", fill=quiet)
    lines = (_arc(arc, layout) for arc in layout.arcs)
    heads = (_head(layout.core, layout.places[one].into) for arc in layout.arcs for one in arc.targets)
    arcs = element("g", *lines, class_="arcs", fill="none", stroke=colour, stroke_width=1.3)
    return joined([links, arcs, element("g", *heads, class_="heads", fill=colour)])


def _link(link: Link) -> Html:
    top, bottom = round(link.top, 1), round(link.bottom, 1)
    return element("path", d=f"M{link.x} {bottom}l-3.5 -4.5h2.8V{top}h1.4V{bottom - 4.5}h2.8z")


def _arc(arc: Arc, layout: Layout) -> Html:
    """Return the way of arcs that share a lane: each joins it with a round corner."""
    edge, x = layout.core, arc.x
    outs = [layout.places[one].out for one in arc.sources]
    ins = [layout.places[one].into for one in arc.targets]
    parts = [f"M{edge} {y}H{x - RADIUS}Q{x} {y} {x} {y + _turn(y, max(ins))}" for y in outs]
    parts += [f"M{x} {y + _turn(y, min(outs))}Q{x} {y} {x - RADIUS} {y}H{edge + 5}" for y in ins]
    low, high = min(*outs, *ins), max(*outs, *ins)
    return element("path", d="".join(parts) + f"M{x} {low + RADIUS}V{high - RADIUS}")


def _turn(y: float, toward: float) -> int:
    return RADIUS if toward > y else -RADIUS


def _head(edge: float, y: float) -> Html:
    return element("path", d=f"M{edge} {y}l6 -3.5v7z")
