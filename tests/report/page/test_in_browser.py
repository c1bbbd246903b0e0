"""Pages in a real browser: nothing leaves them, nothing complains, and what a person does works."""

import json
import re

import pytest
from made_trainings import HOSTILE, NAMES, watch_document
from samples_of_results import LINES, SAMPLES, STAR

import modelscope_cli as ms
from modelscope_cli.plain_text import plain

TINY, HEALTHY = f"{SAMPLES}/tiny_resnet.py:TinyResNet", f"{SAMPLES}/tiny_resnet.safetensors"
LAYERS = "document.querySelectorAll('#layer-rows tbody tr[data-series]')"
# Of every text that is shown: the contrast of its colour with what lies behind it, by the formula of WCAG 2.
CONTRASTS = """(() => {
  const parse = (colour) => { const [r, g, b, a] = colour.match(/[\\d.]+/g).map(Number); return [r, g, b, a ?? 1] };
  const over = (top, under) => top.slice(0, 3).map((one, i) => one * top[3] + under[i] * (1 - top[3]));
  const light = (rgb) => rgb.map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.push(parse(getComputedStyle(one).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !element.checkVisibility() || element.closest("script")) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const front = over(parse(element.closest("svg") ? style.fill : style.color), back);
    const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), texts.currentNode.textContent.slice(0, 40)]);
  }
  return found.sort((x, y) => x[0] - y[0]).slice(0, 3).concat([[found.length, ""]]);
})()"""


def texts(browser, query):
    return browser.run(f"[...document.querySelectorAll({json.dumps(query)})].map((one) => one.textContent)")


@pytest.mark.parametrize("name", ["check", "explain", "stats", "train"])
def test_nothing_leaves_a_page_and_nothing_complains(name, shown, documents, tmp_path):
    browser = shown(documents[name])
    assert browser.requests() == []
    assert browser.complaints() == []
    assert texts(browser, "h2")[-1] == "How it was made"
    assert name in LINES


@pytest.mark.parametrize("name", ["check", "predict", "stats", "summary", "train", "watch", "weights"])
def test_the_answer_is_in_the_first_400_pixels_and_nothing_is_wider_than_a_phone(name, shown, documents):
    """The heading names a number or a verdict; what follows it begins on the first screen."""
    browser = shown(documents[name])
    heading = "document.querySelector('h1')"
    words = browser.run(f"{heading}.textContent")
    assert re.search(r"\d|passed|failed|wrong|cannot tell|fooled|same|different", words, re.IGNORECASE)
    assert browser.run(f"{heading}.getBoundingClientRect().bottom") < 400
    assert browser.run("document.querySelector('main h2').getBoundingClientRect().top") < 400
    assert browser.run("[...document.images].slice(0, 1).every((one) => one.loading !== 'lazy')")
    size = {"height": 900, "deviceScaleFactor": 1, "mobile": False}
    for width in (768, 390):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, **size)
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.complaints() == []


def test_the_policy_is_in_force(shown):
    """Markup that got in would still reach nobody and run nothing."""
    browser = shown(watch_document())
    browser.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=http://127.0.0.1:9/x.png><p style=color:red>"
        "<a href=# onclick=document.title=1 id=evil>x</a>'); document.getElementById('evil').click()"
    )
    assert browser.run("document.title") != "1"
    assert "Content Security Policy" in "".join(browser.complaints())
    assert not [url for url in browser.requests() if not browser.told("Network.loadingFailed")]


@pytest.mark.parametrize("half", [0, 1])
def test_hostile_names_stay_text(half, shown):
    names = HOSTILE[half::2]
    browser = shown(watch_document(names))
    assert browser.complaints() == []
    assert browser.requests() == []
    shown_names = browser.run(f"[...{LAYERS}].map((row) => row.cells[0].textContent)")
    assert shown_names == [plain(name) for name in names]
    # The one image is the figure.
    assert browser.run("document.querySelectorAll('main img').length") == 1
    assert browser.run("document.querySelectorAll('main b, main script, svg[onload]').length") == 0
    assert browser.run("document.documentElement.scrollWidth") <= 1440
    browser.run(f"[...{LAYERS}].forEach((row) => row.querySelector('button').click())")
    browser.run("new Promise((done) => setTimeout(done, 300))")
    assert browser.run("document.querySelectorAll('.detail canvas').length") == len(names)
    assert browser.complaints() == []


def test_the_data_in_the_page_is_the_document(shown):
    """Also where it is compressed, which the script undoes."""
    document = watch_document([f"layer{n}.conv" for n in range(40)])
    browser = shown(document)
    assert browser.run("JSON.parse(document.getElementById('modelscope-data').textContent).gzip.length") > 0
    assert json.loads(browser.run("modelscope.data().then((all) => JSON.stringify(all))")) == [document]


def test_a_table_is_sorted_by_its_numbers(shown):
    document = watch_document([f"layer{n}" for n in range(12)])
    browser = shown(document)
    heading = (
        "[...document.querySelectorAll('#layer-rows thead th')].find((one) => one.textContent === 'std last')"
    )
    column = browser.run(f"{heading}.cellIndex")
    last = sorted((layer["series"]["std"][-1] for layer in document["layers"]), reverse=True)

    # A column has one notation, so its small numbers have fewer digits.
    digits = 1e-3 * max(last)

    def figures():
        return [
            float(text)
            for text in browser.run(f"[...{LAYERS}].map((row) => row.cells[{column}].textContent)")
        ]

    browser.run(f"{heading}.querySelector('button').click()")
    assert browser.run(f"{heading}.getAttribute('aria-sort')") == "descending"
    assert figures() == pytest.approx(last, rel=1e-3, abs=digits)
    browser.run(f"{heading}.querySelector('button').click()")
    assert browser.run(f"{heading}.getAttribute('aria-sort')") == "ascending"
    assert figures() == pytest.approx(last[::-1], rel=1e-3, abs=digits)


def test_a_table_is_filtered_by_a_regular_expression_and_by_findings(shown):
    names = [f"layer{n}.{kind}" for n in range(6) for kind in ("conv", "relu")]
    browser = shown(watch_document(names))

    def type_in(words):
        box = "document.querySelector('.filter[data-for=layer-rows]')"
        browser.run(f"{box}.value = {json.dumps(words)}; {box}.dispatchEvent(new Event('input'))")
        return browser.run(
            f"[...{LAYERS}].filter((row) => !row.hidden).map((row) => row.cells[0].textContent)"
        )

    assert type_in(r"layer[23]\.conv") == ["layer2.conv", "layer3.conv"]
    assert texts(browser, ".count[data-for=layer-rows]") == ["2 of 12 rows"]
    assert type_in("layer(") == names
    assert browser.run("document.querySelector('.filter').getAttribute('aria-invalid')") == "true"
    assert texts(browser, ".count[data-for=layer-rows]") == ["not a regular expression"]
    type_in("")
    browser.run("document.querySelector('.only[data-for=layer-rows]').click()")
    assert type_in("") == [names[2]]
    assert browser.complaints() == []


def test_a_row_opens_into_its_series_and_closes_again(shown):
    document = watch_document()
    browser = shown(document)
    row = "document.getElementById('layer-1')"
    browser.run(f"{row}.querySelector('button').click()")
    browser.run("new Promise((done) => setTimeout(done, 200))")
    titles = texts(browser, ".detail figcaption")
    assert titles[0].startswith("histogram of |x| over steps")
    assert [title for title in titles if title.startswith("weight: update / weight")]
    assert "channels dead at the end: 3, 7" in browser.run(f"{row}.nextElementSibling.textContent")
    labels = browser.run("[...document.querySelectorAll('.detail [role=img]')].map((one) => one.ariaLabel)")
    first = f"{document['layers'][1]['series']['std'][0]:.4g}".rstrip("0").rstrip(".")
    assert any(f"standard deviation: {first} at first" in label for label in labels)
    browser.run(f"{row}.querySelector('button').click()")
    assert texts(browser, ".detail") == []


def test_without_a_script_everything_is_there_to_read(shown):
    document = watch_document()
    browser = shown(document, script=False)
    # Chromium leaves out of it what it has not laid out yet, below the screen.
    browser.run("for (const one of document.querySelectorAll('*')) one.style.contentVisibility = 'visible'")
    text = browser.run("document.body.innerText")
    assert all(name in text for name in NAMES)
    assert document["findings"][0]["message"] in text
    assert document["findings"][0]["hint"] in text
    assert "only marked rows" not in text  # what does nothing is not shown
    assert browser.complaints() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["watch", "check"])
def test_every_text_stands_out(name, dark, shown, documents):
    document = watch_document() if name == "watch" else documents[name]
    browser = shown(document, dark=dark)
    browser.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    if name == "watch":
        browser.run("document.getElementById('layer-1').querySelector('button').click()")
        browser.run("new Promise((done) => setTimeout(done, 200))")
    *worst, (n, _) = browser.run(CONTRASTS)
    assert n > 50
    assert worst[0][0] >= 4.5, worst


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_confusion_matrix_is_green_where_it_is_right_and_can_be_read(dark, shown):
    shapes = f"{SAMPLES}/shapes"
    record = ms.predict(TINY, shapes, checkpoint=HEALTHY, truth="folders", size=160)
    browser = shown(record.to_dict(), dark=dark)
    assert 0.1 < record.truth.accuracy.value < 0.9
    colours = browser.run(
        "[...document.querySelectorAll('.matrix td[class^=h]')].map((one) => [one.classList.contains('hit'), "
        "...getComputedStyle(one).backgroundColor.match(/[\\d.]+/g).map(Number)])"
    )
    assert {is_right for is_right, *_ in colours} == {True, False}
    assert all((green > red) == is_right for is_right, red, green, *_ in colours)
    *worst, (n, _) = browser.run(CONTRASTS)
    assert n > 100
    assert worst[0][0] >= 4.5, worst


def test_a_phone_is_told_that_a_figure_scrolls(shown, tmp_path):
    record = ms.ablate(TINY, STAR, checkpoint=HEALTHY, size=32).save(tmp_path / "without")
    browser = shown(record.to_dict(), folder=tmp_path / "without")
    hint = "getComputedStyle(document.querySelector('.drawn'), '::before').content"
    assert browser.run(hint) == "none"
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=400, height=900, deviceScaleFactor=1, mobile=False
    )
    assert "scroll sideways" in browser.run(hint)
    assert browser.run(
        "(({scrollWidth, clientWidth}) => scrollWidth > clientWidth)(document.querySelector('.drawn'))"
    )
    assert browser.run("document.documentElement.scrollWidth") <= 400


def test_a_page_prints(shown):
    browser = shown(watch_document([f"layer{n}.conv" for n in range(60)]))
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page/") + pdf.count(b"/Type /Page ") >= 2
