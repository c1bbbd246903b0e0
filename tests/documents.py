"""Hold documents against the JSON Schema that `modelscope schema` prints."""

from jsonschema import Draft202012Validator

from modelscope_cli.records.documents import schema


def assert_fits(document):
    """Assert that a document is as its schema says, and has no key that the schema does not know."""
    _, name, _ = document["schema"].split("/")
    validator = Draft202012Validator(closed(schema(name)))
    problems = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]
    assert not problems, problems[:5]


def closed(part, is_whole=True):
    """Return a schema whose objects hold nothing but the properties they name."""
    if isinstance(part, list):
        return [closed(item) for item in part]
    if not isinstance(part, dict):
        return part
    closes = is_whole and "properties" in part and part.get("type") == "object" and "required" in part
    inside = {key: closed(value, key != "oneOf") for key, value in part.items()}
    return {**inside, "additionalProperties": False} if closes else inside
