"""`modelscope grads`: the tables, the folder it leaves, and what it says."""

FILES = ["activations.csv", "gradient_flow.png", "parameters.csv", "report.html", "report.json"]


def names(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


NAN = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 3))
        nn.init.constant_(self[0].bias, torch.nan)
"""


def test_a_loss_that_is_nan_is_said_and_strict_json(run, cwd):
    (cwd / "nan.py").write_text(NAN)
    outcome = run("grads -m nan.py:Net --json")
    assert "warning: the scores of 1 image are NaN or infinite; modelscope stats shows" in outcome.err
    document = outcome.json
    assert document["loss"]["value"] is None
    assert {row["mark"] for row in document["parameters"]} == {"non-finite"}
    assert [row["nan_count"] for row in document["parameters"]] == [12, 3]
    assert names(cwd / "runs" / "grads-nan.py-Net") == FILES  # drawn and written all the same
