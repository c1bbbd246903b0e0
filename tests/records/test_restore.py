"""From a document back to the record: the same document again, or a refusal, and never anything between."""

import copy
import json
import math
import shlex

import pytest
from samples_of_results import LINES

from modelscope_cli.records.documents import RECORDS, NotADocumentError, restore
from modelscope_cli.report.formats import render_json, strict
from modelscope_cli.report.registry import sheet_of


@pytest.mark.parametrize("name", LINES)
def test_a_restored_record_has_the_document_it_was_made_of(name, documents):
    document = documents[name]
    record = restore(document)
    assert strict(record.to_dict()) == document
    assert json.loads(render_json(record.to_dict())) == document
    assert sheet_of(record).rows is not None


def test_every_command_that_returns_a_record_is_tried():
    tried = {shlex.split(line)[0] for line in LINES.values()}
    assert tried >= {
        "watch", "stats", "grads", "check", "diff", "summary", "weights", "predict", "rules", "models",
    }  # fmt: skip
    assert {name.partition("-")[0] for name in RECORDS} == tried


@pytest.mark.parametrize(("path", "value", "words"), [
    (("layers", 0, "mean"), "<script>", "expected `float | null`, got `str` - at `$.layers[0].mean`"),
    (("layers", 0, "mean"), True, "got `bool` - at `$.layers[0].mean`"),
    (("layers", 0, "order"), 1.5, "expected `int`, got `float` - at `$.layers[0].order`"),
    (("layers", 0, "shape"), [1, "x"], "expected `int`, got `str` - at `$.layers[0].shape[1]`"),
    (("layers", 0, "name"), 7, "expected `str`, got `int` - at `$.layers[0].name`"),
    (("layers",), {"a": 1}, "expected `array`, got `object` - at `$.layers`"),
    (("layers", 0), [], "expected `object`, got `array` - at `$.layers[0]`"),
    (("model", "class"), None, "expected `str`, got `null` - at `$.model.class`"),
    (("seed",), "1", "expected `int | null`, got `str` - at `$.seed`"),
    (("schema",), "modelscope/stats/2", "this version reads modelscope/stats/1"),
    (("schema",), "other/stats/1", "its schema is 'other/stats/1'"),
])  # fmt: skip
def test_a_value_of_another_kind_is_refused_where_it_stands(path, value, words, documents):
    document = copy.deepcopy(documents["stats"])
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(NotADocumentError) as refused:
        restore(document)
    assert words in str(refused.value)


@pytest.mark.parametrize("document", [None, [], "modelscope/stats/1", {}, {"schema": "modelscope/stats/1"}])
def test_what_is_not_a_document_is_refused(document):
    with pytest.raises(NotADocumentError):
        restore(document)


@pytest.mark.parametrize(("name", "path", "place"), [
    ("train", ("steps",), r"\$\.steps"),
    ("train", ("layers", 0, "order"), r"\$\.layers\[0\]\.order"),
])  # fmt: skip
def test_the_place_is_that_in_the_document(name, path, place, documents):
    document = copy.deepcopy(documents[name])
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = "x"
    with pytest.raises(NotADocumentError, match=f"`{place}`"):
        restore(document)


def test_the_first_missing_key_is_named(documents):
    document = copy.deepcopy(documents["stats"])
    del document["layers"][0]["name"]
    with pytest.raises(NotADocumentError, match=r"missing required field `name` - at `\$\.layers\[0\]`"):
        restore(document)


def test_unknown_keys_are_left_out_and_missing_ones_take_their_default(documents):
    document = copy.deepcopy(documents["stats"])
    document["of a later version"] = 1
    document["layers"][0]["of a later version"] = 1
    del document["inputs"]
    assert restore(document).inputs == ()


def test_what_json_has_no_word_for_is_a_number_again(documents):
    document = copy.deepcopy(documents["stats"])
    document["near_zero"] = None
    assert math.isnan(restore(document).near_zero)
