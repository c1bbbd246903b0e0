"""Documents in a page come back as they went in, whatever is in them, and damage is refused."""

import base64
import gzip
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelscope_cli.records.page_data import NotAPageError, embed, extract, is_page

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1e6, 1e6).map(lambda value: float(f"{value:.9g}")),
    st.integers(-(2**60), 2**60),
    st.none(),
)
VALUES = st.recursive(
    st.one_of(NUMBERS, st.booleans(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=12), st.dictionaries(st.text(), inner, max_size=4)),
)
DOCUMENTS = st.lists(st.dictionaries(st.text(), VALUES, min_size=1, max_size=4), min_size=1, max_size=2)


@settings(max_examples=30)
@given(DOCUMENTS)
def test_short_documents_come_back(documents):
    assert extract(embed(documents).encode()) == documents


@settings(max_examples=30)
@given(DOCUMENTS)
def test_long_documents_come_back_from_fewer_bytes(documents):
    documents = [{**one, "long": "x" * 60_000} for one in documents]
    element = embed(documents)
    assert len(element) < 20_000
    assert extract(element.encode()) == documents


@pytest.mark.parametrize(
    "name", ["</script><script>", "<!--", "&lt;", "\u2028", "<script type='application/json'>"]
)
@pytest.mark.parametrize("length", [1, 60_000], ids=["short", "compressed"])
def test_nothing_in_the_data_ends_the_element(name, length):
    document = {name: name * length}
    element = embed([document])
    assert element.count("<") == 2
    assert not re.search("[&\u2028]", element)
    assert extract(f"<html>{element}</html>".encode()) == [document]


def test_the_same_documents_give_the_same_bytes():
    document = {"a": [n / 3 for n in range(20_000)]}
    assert embed([document]) == embed([json.loads(json.dumps(document))])


def held(data):
    return (
        f'<script type="application/json" id="modelscope-data">{json.dumps({"gzip": data})}</script>'.encode()
    )


@pytest.mark.parametrize("page", [
    b"",
    b"<html></html>",
    b'<script type="application/json" id="modelscope-data">{</script>',
    b'<script type="application/json" id="modelscope-data">[]</script>',
    b'<script type="application/json" id="modelscope-data">[1]</script>',
    b'<script type="application/json" id="modelscope-data">{"other":1}</script>',
    b'<script type="application/json" id="modelscope-data">' + b"[" * 100_000 + b"</script>",
    held("AAAA"),
    held("no base64!"),
    held(7),
    held(base64.b64encode(gzip.compress(b"[]")).decode()),
    held(base64.b64encode(gzip.compress(b'{"a":1}')).decode()),
    held(base64.b64encode(gzip.compress(b'[{"a":1}]')[:-9]).decode()),
])  # fmt: skip
def test_what_is_damaged_is_refused(page):
    with pytest.raises(NotAPageError):
        extract(page)


def test_what_would_unpack_to_no_end_is_refused(monkeypatch):
    monkeypatch.setattr("modelscope_cli.records.page_data._MOST_BYTES", 100_000)
    with pytest.raises(NotAPageError):
        extract(embed([{"a": "x" * 100_001}]).encode())


def test_a_page_is_recognised_by_its_data():
    assert is_page(embed([{"a": 1}]).encode())
    assert not is_page(b"<html>a page of somebody else</html>")
