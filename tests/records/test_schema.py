"""`modelscope schema`: every document has one; that real ones fit is tried where they are made, in tests/golden."""

import copy
import inspect
import json
from importlib import import_module
from pathlib import Path

import jsonschema
import pytest
from documents import assert_fits, closed

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.records import documents
from modelscope_cli.records.documents import DIALECT, DOCUMENTS
from modelscope_cli.shell.app import run


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_schema_is_a_valid_schema(name):
    made = ms.schema(name)
    jsonschema.Draft202012Validator.check_schema(made)
    assert made["$schema"] == DIALECT
    assert made["properties"]["schema"] == {"const": f"modelscope/{name}/1"}
    assert set(made["required"]) <= set(made["properties"])


def test_it_is_printed(capsys):
    assert run(["schema", "stats"]) == 0
    assert json.loads(capsys.readouterr().out) == ms.schema("stats")


def test_what_it_says_of_a_key_is_what_the_record_says():
    row = ms.schema("stats")["$defs"]["ActivationStats"]
    assert row["properties"]["zero_fraction"]["description"].startswith("share of exact zeros")
    assert row["properties"]["numel"] == {"type": "integer"}
    assert row["properties"]["mean"] == {"type": ["number", "null"]}
    assert row["properties"]["shape"]["items"] == {"type": "integer"}


def test_an_unknown_document_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean stats"):
        ms.schema("statistics")


def test_a_document_that_does_not_fit_is_seen():
    document = ms.list_rules("MS705").to_dict()
    assert_fits(document)
    for spoil in ({"rules": "none"}, {"unknown": 1}, {"schema": "modelscope/rules/2"}):
        with pytest.raises(AssertionError):
            assert_fits({**document, **spoil})
    without = copy.deepcopy(document)
    del without["rules"][0]["why"]
    with pytest.raises(AssertionError, match="why"):
        assert_fits(without)
    assert "additionalProperties" not in json.dumps(ms.schema("rules")["$defs"])
    assert "additionalProperties" in closed(ms.schema("rules"))["$defs"]["RuleInfo"]


def test_the_table_has_every_record_that_says_which_document_it_is():
    files = Path(documents.__file__).parent.glob("*.py")
    modules = [import_module(f"modelscope_cli.records.{file.stem}") for file in files]
    classes = [one for module in modules for one in vars(module).values() if inspect.isclass(one)]
    found = {one.document: (one.__module__, one.__name__) for one in classes if "document" in vars(one)}
    assert found == documents._RECORDS
    assert sorted(found) == list(DOCUMENTS)
