"""The programs in `tools/` that measure the package and its tests."""

import ast

from tools import house, mistakes


def test_the_package_is_measured(monkeypatch):
    monkeypatch.setattr(house, "PACKAGE", house.PACKAGE / "records")  # of all of it, it takes seconds
    monkeypatch.setattr(house, "TESTS", house.TESTS / "records")
    found = house.measures(walks=False)
    assert found["lines"] > found["statements"] > found["files"] > found["files without __init__"] > 0
    assert (
        house.count_statements(ast.parse('"""A docstring."""\nimport os\nx = 1\ndef f():\n    """Do."""\n'))
        == 2
    )
    assert house.circles({"a": {"b"}, "b": {"a"}, "c": {"a"}, "d": set()}) == [["a", "b"]]
    assert house.arrows_up({"m.records.x": {"m.report.y"}, "m.shell.z": {"m.records.x"}}) == [
        "records -> report (1)"
    ]


def test_a_mistake_is_planted_where_its_function_went(tmp_path):
    moved = tmp_path / "modelscope_cli" / "elsewhere.py"
    moved.parent.mkdir()
    moved.write_text(
        "def other():\n    return a < b\n\n\ndef wanted():\n    return a < b\n", encoding="utf-8"
    )
    mistake = {
        "file": "modelscope_cli/here.py",
        "function": "wanted",
        "before": "return a < b",
        "after": "return a <= b",
    }
    file, text = mistakes.planted(mistake, tmp_path)
    assert file == moved
    assert text.splitlines()[1::4] == ["    return a < b", "    return a <= b"]
    assert mistakes.planted(mistake | {"before": "return b < a"}, tmp_path) is None


def test_each_kind_of_mistake_changes_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(mistakes, "ROOT", tmp_path)
    source = "def f(a, b):\n    if a < b and b:\n        return g(a, b) + 2\n    return a[1]\n"
    (tmp_path / "one.py").write_text(source, encoding="utf-8")
    found = {(one["kind"], one["after"]) for one in mistakes.candidates(tmp_path / "one.py")}
    assert found == {
        ("branch", "if False:"),
        ("and for or", "if a < b or b:"),
        ("comparison", "if a <= b and b:"),
        ("sign", "return g(a, b) - 2"),
        ("constant", "return g(a, b) + 4"),
        ("arguments", "return g(b, a) + 2"),
    }
