"""Records in Python: rows by label, and tables in a notebook."""

import base64
import io
import json
import pickle
import re
from collections import OrderedDict
from dataclasses import dataclass
from html.parser import HTMLParser

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.report.formats import strict
from modelscope_cli.report.notebook import to_html
from modelscope_cli.report.sheet import Column, Sheet


@dataclass(frozen=True)
class Row:
    name: str
    value: float | None = None
    is_bad: bool = False


COLUMNS = (
    Column("name", "layer", lambda r: r.name, is_number=False, rank=0),
    Column("value", "value", lambda r: r.value),
)


def sheet(rows, **facts):
    return Sheet("a title", COLUMNS, tuple(rows), tuple(facts.items()), is_bad=lambda row: row.is_bad)


class Rows(HTMLParser):
    """The class and the text of every row of a table, and every tag and attribute there is."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.tags, self.attributes = [], [], set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([dict(attrs).get("class", ""), ""])

    def handle_data(self, text):
        if self.rows and self.tags[-1] in ("td", "th"):
            self.rows[-1][1] += text


@given(st.text(), st.text(), st.text())
def test_texts_stay_texts(name, label, text):
    odd = Sheet(text, COLUMNS, (Row(name),), ((label, text),))
    ours = Rows(to_html(odd))
    plain = Rows(to_html(Sheet("t", COLUMNS, (Row("n"),), (("l", "t"),))))
    assert ours.tags == plain.tags
    assert ours.attributes <= plain.attributes | {"class"}


def test_there_is_no_script_and_nothing_from_elsewhere():
    html = to_html(sheet([Row("a", 1.0)], note="x"))
    assert not re.search(r"script|javascript|\bon\w+=|url\(|@import|https?:", html)


@pytest.mark.parametrize("n", [0, 1, 40])
def test_a_short_table_is_whole(n):
    rows = Rows(to_html(sheet(Row(f"row{i}", i) for i in range(n)))).rows
    assert len(rows) == 1 + n
    assert all(kind == "" for kind, _ in rows)


@given(st.integers(41, 120), st.sets(st.integers(0, 119), max_size=12))
def test_a_long_table_is_folded_around_what_deserves_a_look(n, bad):
    html = to_html(sheet(Row(f"row{i}", float(i), i in bad) for i in range(n)))
    _, *rows = Rows(html).rows
    hidden = [text for kind, text in rows if "more" in kind.split()]
    told = [int(re.search(r"\d+", text)[0]) for kind, text in rows if kind == "gap"]
    assert sum(told) == len(hidden)
    assert not any("bad" in kind and "more" in kind for kind, _ in rows)
    assert {text for kind, text in rows if "bad" in kind} == {f"row{i}{float(i)}" for i in bad if i < n}
    assert len(rows) - len(told) == n
    # Each gap stands right before the rows it counts.
    kinds = ["gap" if kind == "gap" else "more" in kind.split() for kind, _ in rows]
    for place, kind in enumerate(kinds):
        if kind == "gap":
            following = kinds[place + 1 :]
            length = following.index(False) if False in following else len(following)
            assert told.pop(0) == length
    assert "<details>" in html


class Twice(nn.Module):
    """A layer that runs twice, one with two outputs, and a broken one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.relu = nn.ReLU()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        x = self.relu(self.relu(self.conv(x)) / 0 - 1)
        return self.lstm(x.flatten(2).transpose(1, 2))


@pytest.fixture(scope="module")
def record():
    torch.manual_seed(0)
    return ms.stats(Twice(), torch.ones(1, 3, 6, 6))


def test_a_label_is_one_row(record):
    assert record["conv"] is record.layers[0]
    assert record["relu"].call == 0
    assert record["relu#1"].call == 1
    assert record["lstm [0]"].output == "0"
    assert record[0] is record.layers[0]
    assert record[-1] is record.layers[-1]
    assert tuple(record[:2]) == record.layers[:2]
    assert tuple(record) == record.layers
    assert len(record) == len(record.layers)


@pytest.mark.parametrize(
    ("key", "words"), [("conv1", "did you mean conv"), ("lstm", "matches 3 rows"), ("zzz", "no row 'zzz'")]
)
def test_an_unknown_label_says_what_is_near(record, key, words):
    with pytest.raises(KeyError, match=words):
        record[key]


def test_bad_rows_are_marked(record):
    marked = [text for kind, text in Rows(record._repr_html_()).rows if "bad" in kind]
    odd = [row.nan_count or row.inf_count or row.problem for row in record.layers]
    dying = [row.dead_channels and 2 * row.dead_channels >= row.channels for row in record.layers]
    assert len(marked) == sum(bool(one or other) for one, other in zip(odd, dying, strict=True))
    assert any(odd)
    assert any(dying)


def test_warnings_are_shown_with_the_record():
    with ms.observe(Twice()) as seen:
        assert "warning" in str(seen)
        assert "none of the layers has run" in seen._repr_html_()


def test_a_record_without_rows_is_there():
    passed = ms.observe(Twice())
    with passed as seen:
        record = seen.record()
    assert record
    assert list(record) == record.to_rows() == []
    with pytest.raises(UsageError, match="nothing to draw"):
        record.plot()


def test_a_figure_is_drawn_and_saved(record, tmp_path):
    figure = record.plot(tmp_path / "stats.svg")
    assert (tmp_path / "stats.svg").read_text().startswith("<?xml")
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="does not end in one of"):
        record.plot(tmp_path / "stats.xyz")


TINY, STAR = "samples/tiny_resnet.py:TinyResNet", "samples/star.png"
TRAINED = {"checkpoint": "samples/tiny_resnet.safetensors"}


def test_a_repr_is_one_line_and_print_the_table(record):
    n = len(record.layers)
    assert repr(record) == f"StatsRecord({n} layers, Twice, 1x3x6x6)"
    assert len(str(record).splitlines()) > n
    assert repr(ms.list_rules()).startswith("RuleList(")
    assert "\n" not in repr(ms.weights("samples/tiny_resnet.safetensors"))


def test_a_row_is_a_short_card(record):
    row = record["relu#1"]
    assert repr(row).startswith("ActivationStats(relu#1, type ReLU, shape 1x4x4x4, NaN ")
    assert "mean" not in repr(row)  # has no finite value: what has no value is left out
    assert repr(record["conv"]).startswith("ActivationStats(conv, type Conv2d, shape 1x4x4x4, mean ")
    assert repr(record["lstm [0]"]).startswith("ActivationStats(lstm [0], ")
    card = row._repr_html_()
    assert '<p class="title">relu#1</p>' in card
    assert f"<dt>channels</dt><dd>{row.channels}</dd>" in card
    assert "\n" not in repr(row)


def test_a_card_escapes_names():
    record = ms.stats(nn.Sequential(OrderedDict([("<b>", nn.Linear(2, 2))])), torch.ones(1, 2))
    assert "&lt;b&gt;" in record["<b>"]._repr_html_()
    assert "<b>" not in record["<b>"]._repr_html_()


def image_in(html):
    """Return the one image in HTML."""
    (data,) = re.findall(r'src="data:image/\w+;base64,([^"]+)"', html)
    return Image.open(io.BytesIO(base64.b64decode(data)))


@pytest.mark.parametrize("result", [
    lambda **out: ms.featuremaps(TINY, STAR, **TRAINED, **out),
    lambda **out: ms.explain(TINY, STAR, method="gradcam", receipt="none", **TRAINED, **out),
    lambda **out: ms.attack(TINY, STAR, epsilon="4/255", steps=2, **TRAINED, **out),
], ids=["featuremaps", "explain", "attack"])  # fmt: skip
def test_the_figure_below_is_that_of_the_folder(result, tmp_path):
    bare, saved = result(), result(out=tmp_path / "out")
    assert "<img" not in ms.stats(TINY, STAR, **TRAINED)._repr_html_()
    live, read = image_in(bare._repr_html_()), image_in(ms.read(tmp_path / "out")._repr_html_())
    assert image_in(saved._repr_html_()).size == read.size
    ratio = [live.width / live.height, read.width / read.height]  # one is drawn at fewer dots
    assert ratio[0] == pytest.approx(ratio[1], rel=0.02)
    assert len(live.convert("RGB").getcolors(1 << 24)) > 16


def test_no_document_has_the_picture(tmp_path):
    record = ms.featuremaps(TINY, STAR, **TRAINED)
    assert "picture" not in str(record.to_dict().keys())
    assert pickle.loads(pickle.dumps(record)) == record
    record.save(tmp_path / "maps.json")
    assert "<img" not in ms.read(tmp_path / "maps.json")._repr_html_()  # no pixels, no image


def test_ablate_and_watch_draw_their_figures():
    assert image_in(ms.ablate(TINY, STAR, **TRAINED, layer="block1.*")._repr_html_())
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ms.watch(model, optimizer) as watched:
        assert "<img" not in watched._repr_html_()  # nothing to draw yet
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert image_in(watched._repr_html_())
    assert repr(watched.record()).startswith("WatchRecord(")


@pytest.mark.parametrize("ending", ["html", "json", "csv", "tsv", "md", "svg", "PNG"])
def test_the_name_of_the_file_chooses_the_format(record, ending, tmp_path):
    file = tmp_path / f"stats.{ending}"
    record.save(file)
    start = {
        "html": b"<!doctype",
        "json": b"{",
        "csv": b"name,",
        "tsv": b"name\t",
        "md": b"### ",
        "svg": b"<?xml",
    }
    assert file.read_bytes().lower().startswith(start.get(ending, b"\x89png"))
    if ending in ("html", "json"):
        assert ms.read(file).to_dict() == json.loads(json.dumps(strict(record.to_dict())))


def test_an_unknown_ending_is_refused(record, tmp_path):
    with pytest.raises(UsageError, match=r"does not end in one of \.html, \.json"):
        record.save(tmp_path / "stats.xyz")
    assert not list(tmp_path.iterdir())
