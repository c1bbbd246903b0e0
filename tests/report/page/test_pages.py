"""Pages without a browser: well formed, complete, small, the same bytes each time, and asking nobody."""

import base64
import hashlib
import html
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_trainings import HOSTILE, finding, watch_document
from PIL import Image
from samples_of_results import LINES

import modelscope_cli as ms
from modelscope_cli.plain_text import plain
from modelscope_cli.records.documents import restore
from modelscope_cli.records.page_data import extract
from modelscope_cli.records.predict import Mistake, TruthReport
from modelscope_cli.records.reading import read
from modelscope_cli.records.run import Share
from modelscope_cli.report.canvas import new_figure, to_png
from modelscope_cli.report.page.common import environment
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.page.results import page_of, page_of_parts, save_result
from modelscope_cli.report.predict.table import truth_sheet
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
    for name in ("featuremaps", "lrfind", "train"):
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


def test_why_few_steps_are_recorded_is_said_once(undrawn):
    document = watch_document()
    document["events"] += [{"step": 5, "kind": "sparse", "message": "recording is slow"}]
    page = page_of(restore(document))
    verdict = page[page.index('id="verdict"') : page.index('id="steps"')]
    assert "to keep the overhead small (--every 1 records all)" in verdict
    assert verdict.count("overhead") == 1


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


PINK = [230, 50, 150]


def photo_figure(is_laid_out):
    """Return a figure with a picture in colour, a map with its colour bar, and a line, as its image file."""
    figure = new_figure(6, 3, "a title", is_laid_out=is_laid_out)
    photo, heat, line = (figure.add_subplot(1, 3, place) for place in (1, 2, 3))
    photo.imshow(np.full((8, 8, 3), PINK) / 255)
    figure.colorbar(heat.imshow(np.eye(8)), ax=heat)
    line.plot([0, 1])
    return to_png(figure)


@pytest.mark.parametrize("is_laid_out", [True, False])
def test_a_dark_page_inverts_what_is_around_the_images_of_a_figure(is_laid_out):
    data = photo_figure(is_laid_out)
    markup = EmbeddedImages(None).drawn(data, "alt", is_chart=True)
    below, frame = (
        Image.open(io.BytesIO(base64.b64decode(uri)))
        for uri in re.findall(r"data:image/\w+;base64,([^\"]+)", markup)
    )
    assert 'class="framed"' in markup
    seen, alpha = np.asarray(below.convert("RGB")), np.asarray(frame.convert("RGBA"))[..., 3]
    assert seen.shape[:2] == alpha.shape
    for colour in (PINK, [68, 1, 84]):  # the photo; the map, and the lower end of its bar
        is_seen = np.abs(seen.astype(int) - colour).max(-1) <= 8
        assert is_seen.sum() > 1000
        assert (alpha[is_seen] == 0).mean() > 0.95
    assert (alpha[:20] == 255).all()  # the title
    assert 0.1 < (alpha == 0).mean() < 0.7


def test_a_chart_has_no_frame():
    figure = new_figure(3, 2)
    figure.add_subplot().imshow(np.eye(4))
    markup = EmbeddedImages(None).drawn(to_png(figure), "alt", is_chart=True)
    assert 'class="chart"' in markup
    assert "framed" not in markup


def test_a_page_without_figures_names_the_folder_that_draws_them(tmp_path):
    record = restore(watch_document())
    save_result(record, tmp_path, Path("runs/a b"), is_drawing=False)
    page = html.unescape((tmp_path / "report.html").read_text())
    assert "<code>modelscope report 'runs/a b'</code>" in page
    assert "report FOLDER" not in page


@pytest.mark.parametrize(("n_wrong", "said"), [(24, False), (25, True), (60, True)])
def test_mistakes_say_how_many_of_all_are_shown(n_wrong, said):
    worst = tuple(Mistake(f"{n}.png", (0,), ("a",), 1, "b", 0.9) for n in range(min(n_wrong, 24)))
    truth = TruthReport("classes", 100, Share.of(100 - n_wrong, 100), worst=worst)
    run = ms.summary("resnet18", input_shape=(1, 3, 32, 32)).run
    facts = dict(truth_sheet(run, truth, (), "worst").facts)
    assert ("worst" in facts) == said
    if said:
        assert facts["worst"].startswith(f"24 of {n_wrong} misclassified images")


def test_rules_that_passed_are_folded_below_the_others(documents, pages):
    rules, page = documents["check"]["rules"], pages("check")
    with_findings = {one["code"] for one in documents["check"]["findings"]}
    passed = {one["code"] for one in rules if one["judged"]} - with_findings
    shown, folded = page.split("<details>")[0], page.split("<details>")[1].split("</details>")[0]
    assert f"<summary>{len(passed)} rules passed</summary>" in folded
    rows = {part: set(re.findall(r'<th scope="row">(MS\d+)</th>', part)) for part in (shown, folded)}
    assert rows[folded] == passed
    assert rows[shown] == {one["code"] for one in rules} - passed
    assert with_findings


def test_a_page_of_parts_has_its_heading_once(documents):
    parts = [restore(documents[name]) for name in ("predict", "check")]
    answers = [view_of(one).headline(one) for one in parts]
    page = page_of_parts(parts, {})
    assert page.count(f">{answers[0]}<") == 1  # its heading
    assert page.count(f">{answers[1]}<") == 1


def test_random_weights_get_no_green_heading(documents):
    def parts_with(resolved):
        for name in ("predict", "check"):
            one = restore(
                {**documents[name], "findings": [], "passed": True} if name == "check" else documents[name]
            )
            model = replace(one.run.model, weights=replace(one.run.model.weights, resolved=resolved))
            yield replace(one, run=replace(one.run, model=model, warnings=()))

    loaded, drawn = (page_of_parts([*parts_with(resolved)], {}) for resolved in ("checkpoint", "random"))
    said = "The weights are random: the predictions say nothing about the images"
    assert (said in loaded, drawn.count(f">{said}<")) == (False, 1)
    assert ('answer sound"' in loaded, 'answer sound"' in drawn) == (True, False)


def test_the_weights_of_an_object_are_not_called_object_weights():
    module = ms.load("resnet18", weights="none", device="cpu").module
    body = environment(ms.summary(module, input_shape=(1, 3, 32, 32))).body
    assert "<dt>weights</dt><dd>handed over</dd>" in body
