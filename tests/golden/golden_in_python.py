"""What a record shows in Python, held against what its command printed."""

import csv
import io
from html.parser import HTMLParser

import pytest
from undrawn import DRAWN

from modelscope_cli.errors import UsageError, commented
from modelscope_cli.plain_text import spreadsheet_cell
from modelscope_cli.report.formats import _cell
from modelscope_cli.report.registry import sheet_of, view_of
from modelscope_cli.report.sheet import Value


class Cells(HTMLParser):
    """The texts of a table's cells, row by row."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.open = [], []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        if tag == "img":  # it has no end
            return
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += text


def _cell_of_tsv(value):
    text = " ".join(commented(_cell(value)).split())
    return spreadsheet_cell(text) if isinstance(value, str) else text


def look_at_it_in_python(record, tsv):
    """Hold what a record shows in Python against what its command printed."""
    keys, *cells = csv.reader(io.StringIO(tsv), delimiter="\t", quoting=csv.QUOTE_NONE)
    rows = record.to_rows()
    assert all(list(row) == keys for row in rows)
    assert all(isinstance(value, Value) for row in rows for value in row.values())
    texts = [[_cell_of_tsv(value) for value in row.values()] for row in rows]
    assert [row for row in cells if row not in texts] == []
    assert len(texts) == len(cells) or record.command == "diff"  # which prints only what differs

    labels = [label for label, _ in record.labelled()]
    assert list(record) == [record[n] for n in range(len(record))]
    assert all(record[label] in record for label in labels if labels.count(label) == 1)
    with pytest.raises(KeyError):
        record["no such row"]

    sheet = sheet_of(record)
    shown = Cells(record._repr_html_())
    assert len(shown.rows) == 1 + len(sheet.rows)
    assert [row[0] for row in shown.rows[1:]] == sheet.columns[0].cells(sheet.rows)
    assert sheet.title.splitlines()[0] in str(record)

    is_undrawn = record.command == "predict" and getattr(record, "truth", None) is None
    if view_of(record).figures and not is_undrawn:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("matplotlib.figure.Figure", DRAWN)
            assert record.plot().axes
        with pytest.raises(UsageError, match="is not a figure"):
            record.plot(picture="nonsense")
    elif record.command not in ("explain", "featuremaps"):  # which draw images, where they have any
        with pytest.raises(UsageError, match=r"does not draw|draws a figure only"):
            record.plot()
