"""The notebook of the samples: it is what its script makes, and it runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="pip install '.[test]' brings nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="pip install '.[test]' brings nbclient and ipykernel")

SAMPLES = Path(__file__).parent.parent / "samples"
COMMITTED = json.loads((SAMPLES / "tour.ipynb").read_text(encoding="utf-8"))


def outputs(notebook):
    """Return what every code cell put out: by kind, and the plain text."""
    found = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            kinds = sorted(output.get("data", {})) or [output["output_type"]]
            found.append((kinds, output.get("text") or output["data"].get("text/plain")))
    return found


@pytest.mark.slow
def test_the_notebook_runs_and_says_what_is_committed(tmp_path):
    made = tmp_path / "tour.ipynb"
    command = [sys.executable, str(SAMPLES / "tour.py"), "--output", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    notebook = json.loads(made.read_text(encoding="utf-8"))
    assert [(cell["id"], cell["source"]) for cell in notebook["cells"]] == [
        (cell["id"], cell["source"]) for cell in COMMITTED["cells"]
    ]
    kinds = [kinds for kinds, _ in outputs(notebook)]
    assert kinds == [kinds for kinds, _ in outputs(COMMITTED)]
    assert ["text/html", "text/plain"] in kinds  # a record
    assert ["image/png", "text/plain"] in kinds  # a figure, though nobody imported pyplot
    assert ["error"] not in kinds
    # What is printed and counted; tables hold more digits than another processor would agree on.
    assert "dead: 14 of 16" in "".join(outputs(notebook)[3][1])
    assert "'zero[0..7]@block1.conv1', 1" in "".join(outputs(notebook)[5][1])


def test_the_committed_notebook_names_no_machine():
    text = json.dumps(COMMITTED)
    assert "/home" not in text
    assert str(SAMPLES) not in text
    assert "stderr" not in text
