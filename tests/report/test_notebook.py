"""Records in Python: rows by label, and tables in a notebook."""

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
from modelscope_cli.report.registry import view_of
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


def test_nothing_is_from_elsewhere_and_the_script_can_be_stripped():
    html = to_html(sheet([Row("a", 1.0)], note="x"))
    stripped = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert not re.search(r"script|\bon\w+=", stripped)
    assert not re.search(r"url\(|@import|https?:|fetch|import|eval", html)
    assert Rows(stripped).rows == Rows(html).rows
    assert html.count("<script>") == 1
    assert len(html) - len(stripped) < 4096


@given(st.integers(0, 120), st.sets(st.integers(0, 119), max_size=12))
def test_every_row_is_there_and_marked_where_it_is_bad(n, bad):
    _, *rows = Rows(to_html(sheet(Row(f"row{i}", float(i), i in bad) for i in range(n)))).rows
    assert rows == [["bad" if i in bad else "", f"row{i}{float(i)}"] for i in range(n)]


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
    ("key", "words"),
    [
        ("conv1", "did you mean conv"),
        ("lstm", "matches 3 rows"),
        ("zzz", "no row 'zzz': the rows are conv, relu"),
    ],
)
def test_an_unknown_label_says_what_is_near(record, key, words):
    with pytest.raises(KeyError, match=words):
        record[key]


def test_an_attribute_that_a_record_lacks_is_answered_with_its_place(record):
    summary = ms.summary(Twice(), input_shape=(1, 3, 6, 6))
    for key, place in (
        ("params", ": record.totals.params"),
        ("accuracy", r": record.truth.accuracy of predict\("),
        ("to_pandas", r": pandas.DataFrame\(record.to_rows\(\)\)"),
        ("missing", "$"),
    ):
        with pytest.raises(AttributeError, match=f"SummaryRecord has no '{key}'{place}"):
            getattr(summary, key)
    with pytest.raises(UsageError, match="summary does not draw a figure") as refused:
        summary.plot()
    assert refused.value.hint.startswith('record.save("summary.html")   ')
    with pytest.raises(UsageError, match="layers are given by name, not as Twice"):
        ms.stats(Twice(), torch.ones(1, 3, 6, 6), layer=Twice())
    with pytest.raises(
        AttributeError, match=r"no 'help' in modelscope_cli, which has ablate, .*, weights; help"
    ):
        ms.help  # noqa: B018
    assert pickle.loads(pickle.dumps(record)) == record


def test_bad_rows_are_marked():
    torch.manual_seed(0)
    record = ms.stats(Twice(), torch.ones(100, 3, 6, 6))  # fewer cannot tell that a channel is dead
    marked = [text for kind, text in Rows(record._repr_html_()).rows if "bad" in kind]
    odd = [row.nan_count or row.inf_count or row.problem for row in record.layers]
    dying = [row.dead_channels and 2 * row.dead_channels >= row.channels for row in record.layers]
    assert len(marked) == sum(bool(one or other) for one, other in zip(odd, dying, strict=True))
    assert any(odd)
    assert any(dying)


def test_a_record_without_rows_is_there():
    passed = ms.observe(Twice())
    with passed as seen:
        record = seen.record()
    assert record
    assert list(record) == record.to_rows() == []
    with pytest.raises(UsageError, match="nothing to draw"):
        record.plot()


def watched():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ms.watch(model, optimizer) as loop:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert [row.name for row in loop] == [loop["0"].name, loop["1"].name] == ["0", "1"]
    assert ("0" in loop, "2" in loop) == (True, False)
    return loop.record()


RECORDS = {
    "stats": ms.stats,
    "summary": ms.summary,
    "grads": ms.grads,
    "ablate": lambda model, x: ms.ablate(model, x, layer="conv"),
    "explain": lambda model, x: ms.explain(model, x, layer="conv"),
    "diff": lambda model, x: ms.diff(model, None, x, b_dtype="bfloat16"),
    "watch": lambda model, x: watched(),
}


@pytest.mark.parametrize("command", RECORDS)
def test_a_row_has_an_attribute_for_each_key_of_its_table(command):
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 4, 3), flat=nn.Flatten(), fc=nn.Linear(64, 3)))
    record = RECORDS[command](model, torch.rand(1, 3, 6, 6))
    assert len(record)
    for row, values in zip(record, record.to_rows(), strict=True):
        read = {key: getattr(row, key) for key in values if key != "share"}  # which is of a whole table
        assert all(
            read[key] == value
            for key, value in values.items()
            if key in read and isinstance(value, int | float)
        )
        assert row in record
        assert pickle.loads(pickle.dumps(row)) == row


def test_a_row_has_no_other_attributes(record):
    assert "zeros" not in record
    assert not hasattr(record[0], "zeros")


@pytest.mark.parametrize("command", [ms.featuremaps, ms.explain])
def test_a_result_that_is_an_image_is_drawn_as_it_is_saved(command, tmp_path):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    record = command(model, Image.linear_gradient("L").convert("RGB").resize((24, 24)))
    record.plot(tmp_path / "drawn.png")
    below = Image.open(io.BytesIO(view_of(record).preview(record))).convert("RGB")
    assert Image.open(tmp_path / "drawn.png").convert("RGB").tobytes() == below.tobytes()


def test_a_figure_is_drawn_and_saved(record, tmp_path):
    figure = record.plot(tmp_path / "stats.svg")
    assert (tmp_path / "stats.svg").read_text().startswith("<?xml")
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="does not end in one of"):
        record.plot(tmp_path / "stats.xyz")


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
