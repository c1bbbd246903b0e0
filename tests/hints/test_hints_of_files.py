"""The hint for a misspelt file is the nearest file of its kind, not one of another kind."""

from modelscope_cli.paths import look_for


def test_the_nearest_file_of_the_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("shape.pth", "shapes.py", "other.pth"):
        (tmp_path / name).touch()
    assert look_for("shapes.pth") == "did you mean shape.pth"
    assert look_for("unlike.pth") == "ls ."
    assert look_for("shape.onnx") == "ls ."
    assert look_for("other") == "did you mean other.pth"
