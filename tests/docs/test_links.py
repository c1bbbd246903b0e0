"""Links of the pages lead somewhere: to a page, to a heading on it, to a picture. No builder is needed for that."""

import re

import pytest

from tools.docs import PICTURES, ROOT, pages
from tools.docs.markdown import link

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


def broken_links(page, text):
    for target in LINK.findall(CODE.sub("", text)):
        name, _, anchor = target.partition("#")
        if re.match(r"\w+:", target):
            continue
        other = (page.parent / name).resolve() if name else page
        if not other.is_file() or (anchor and anchor not in anchors(other)):
            yield target


def anchors(page):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    return {link(heading) for heading in re.findall(r"(?m)^#+ (.*)$", text)}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert list(broken_links(page, page.read_text("utf-8"))) == []


def test_a_broken_link_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A b\n[x](page.md#a-b) [y](#c) ![z](no.png)\n")
    assert list(broken_links(page, page.read_text())) == ["#c", "no.png"]


def test_every_picture_is_shown_and_drawn():
    shown = {name for page in pages() for name in re.findall(r"pictures/([\w.]+)", page.read_text("utf-8"))}
    assert shown == {picture.name for picture in PICTURES.iterdir()}
    script = (ROOT / "tools" / "docs" / "pictures.py").read_text("utf-8")
    assert [name for name in shown if f'"{name}"' not in script] == []


def test_the_readme_is_short_and_holds_the_command_that_ci_runs():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.encode()) <= 16_000
    assert len(re.findall(r"(?m)^python3 .*pytest", text)) == 1
