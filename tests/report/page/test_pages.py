"""Pages without a browser: well formed, complete, small, the same bytes each time, and asking nobody."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from made_trainings import HOSTILE, finding, watch_document
from samples_of_results import LINES

from modelscope_cli.plain_text import plain
from modelscope_cli.records.documents import restore
from modelscope_cli.records.page_data import extract
from modelscope_cli.records.reading import read
from modelscope_cli.report.page.results import page_of
from modelscope_cli.report.registry import view_of

VOID = {"meta", "link", "input", "img", "br"}
PAGES = [name for name in LINES if name not in ("models", "rules", "weights_scan")]


class Parsed(HTMLParser):
    """A page as its elements; fails where they are not well nested."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.words, self.raw = [], [], [], {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] in ("style", "script"):
            self.raw.setdefault(self.open[-1], []).append(text)
        else:
            self.words.append(text)

    def all(self, attribute):
        return [attributes[attribute] for _, attributes in self.elements if attribute in attributes]


@pytest.fixture(scope="module")
def pages(documents):
    made = {}

    def page(name):
        if name not in made:
            made[name] = page_of(restore(documents[name]))
        return made[name]

    return page


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_well_formed_and_loads_nothing(name, pages):
    parsed = Parsed(pages(name))
    links = parsed.all("href")
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert all(source.startswith("data:image/") for source in parsed.all("src"))
    assert not {"style", "onclick", "onload", "onerror", "srcset", "action"} & {
        attribute for _, attributes in parsed.elements for attribute in attributes
    }
    names = parsed.all("id")
    assert len(names) == len(set(names))
    assert {link[1:] for link in links if link.startswith("#")} <= {*names}
    html = next(attributes for tag, attributes in parsed.elements if tag == "html")
    assert html["lang"] == "en"
    assert all(attributes.get("alt") for tag, attributes in parsed.elements if tag == "img")
    assert all(attributes.get("scope") for tag, attributes in parsed.elements if tag == "th")
    tables = [attributes for tag, attributes in parsed.elements if tag == "table"]
    assert len(tables) == sum(tag == "caption" for tag, _ in parsed.elements)
    pictures = [a for tag, a in parsed.elements if tag == "svg" and a.get("role") == "img"]
    assert all(attributes.get("aria-label") for attributes in pictures)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_every_row_and_holds_the_whole_document(name, pages, documents):
    page = pages(name)
    (document,) = extract(page.encode())
    assert document == documents[name]
    words = {text.strip() for text in Parsed(page).words}
    record = restore(document)
    sheet = view_of(record).whole_sheet(record)
    if name not in ("check",):  # whose findings are cards
        first = replace(sheet.columns[0], text=None) if sheet.is_tree else sheet.columns[0]
        assert {cell.strip() for cell in first.cells(sheet.rows)} <= words
    assert [
        told["message"]
        for told in document.get("findings", ())
        if told["message"] not in page.replace("&lt;", "<").replace("&gt;", ">")
    ] == []


def test_every_folder_with_images_has_its_page(documents):
    for name in ("featuremaps", "lrfind", "prune", "train", "train_study"):
        folder = documents.folder_of(name)
        file = folder / "report.html"
        assert file.read_text(encoding="utf-8") == page_of(restore(extract(file.read_bytes())[0]), folder)
        assert "<img" in file.read_text(encoding="utf-8")


def test_the_policy_names_what_is_in_the_page(pages):
    parsed = Parsed(pages("stats"))
    policy = next(
        a["content"] for _, a in parsed.elements if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    (style,), scripts = parsed.raw["style"], parsed.raw["script"]
    for text, directive in ((style, "style-src"), (scripts[-1], "script-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


def test_the_same_result_gives_the_same_bytes_also_when_it_was_read_back(tmp_path, pages):
    page = pages("grads")
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    assert page_of(read(file)) == page
    assert read(file).to_html() == page


def test_a_verdict_comes_first_and_links_to_its_rows(undrawn):
    names = ("conv1", "relu", "fc")
    found = [
        finding("MS705", "relu", 3),
        finding("MS706", "conv1", 5, follows="MS705"),
        finding("MS707", None, 7),
    ]
    page = page_of(restore(watch_document(names, findings=found)))
    assert page.index('id="verdict"') < page.index('id="steps"') < page.index('id="layers"')
    assert "<img" in page[page.index('id="steps"') : page.index('id="layers"')]
    verdict = page[page.index('id="verdict"') : page.index('id="steps"')]
    assert verdict.index("MS705") < verdict.index('href="#layer-1"') < verdict.index("Consequences:")
    assert 'href="#layer-0"' in verdict


ELEMENTS = {
    "html", "head", "meta", "link", "title", "style", "body", "a", "header", "h1", "h2", "h3", "p", "nav",
    "main", "section", "div", "dl", "dt", "dd", "span", "ul", "li", "figure", "figcaption", "img",
    "form", "label", "input", "output", "select", "option", "details", "summary", "code",
    "script", "table", "caption", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_words_are_escaped_everywhere(name, undrawn):
    page = page_of(restore(watch_document([name, "other"])))
    parsed = Parsed(page)
    assert {tag for tag, _ in parsed.elements} <= ELEMENTS
    assert plain(name) in parsed.words
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page)
