"""`modelscope watch`: which rules name which kind, and its record as a verdict.

A code is listed where it sends the reader to the line of the fault; a symptom that another cause would have shown
just as well is not.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[4]
ALARMS = ("warning", "error")
CODES = {
    "learning rate far too high": "MS701 MS704 MS709",
    "learning rate too high late": "MS701 MS704 MS709",
    "learning rate far too low": "MS710",
    "learning rate decayed to nothing": "MS710 MS719",
    "no step": "MS711",
    "no zero_grad": "MS713",
    "zero_grad before step": "MS714",
    "optimizer of another model": "MS712 MS737",
    "optimizer holds the head only": "MS712",
    "head replaced after the optimizer": "MS712 MS737",
    "branch detached": "MS715",
    "branch under no_grad": "MS715",
    "parameters never used": "MS716",
    "frozen by mistake": "MS717 MS768",
    "trained in evaluation mode": "MS718",
    "ranks see the same data": "MS734",
    "weights put back": "MS747",
    "blocks in a Python list": "MS712",
    "a function without slope": "MS715 MS749",
    "the same output for all": "MS755",
    "samples mixed by softmax": "MS738 MS759",
    "schedule stepped by epoch": "MS758",
    "softmax before cross-entropy": "MS720",
    "ReLU on the logits": "MS721",
    "tanh on the logits": "MS721",
    "sigmoid on the logits": "MS720 MS721",
    "loss in the wrong direction": "MS722",
    "loss summed, not averaged": "MS723",
    "loss divided once too often": "MS710 MS723",
    "shapes that broadcast": "MS724",
    "labels shuffled": "MS735 MS756",
    "labels constant": "MS725",
    "class imbalance collapse": "MS736",
    "input not normalised": "MS726",
    "input constant": "MS727",
    "input NaN": "MS728",
    "NaN in the loss": "MS701 MS703",
    "NaN in one layer": "MS702 MS703",
    "NaN late in the loss": "MS701 MS703",
    "NaN late in one layer": "MS702 MS703",
    "half precision overflows": "MS733",
    "saturated": "MS730 MS739",
    "deep sigmoids": "MS707 MS730 MS740",
    "dead ReLU": "MS705 MS729",
    "dead functional ReLU": "MS705 MS729",
    "half of the channels dead": "MS731",
    "zero initialisation": "MS729",
    "constant initialisation": "MS729",
    "huge initialisation": "MS739",
    "batch norm over a batch of one": "MS732",
    "clipped to nothing": "MS741",
    "dead by a clamp": "MS705 MS729 MS749 MS755",
    "dropout near one": "MS764",
    "embeddings collapse": "MS755 MS757",
    "empty samples": "MS727 MS755",
    "labels sorted": "MS725",
    "module in no optimizer": "MS712",
    "negatives are the positives": "MS749 MS757",
    "numbers overflow": "MS701 MS702 MS703",
    "optimizer that never steps": "MS711 MS712 MS747",
    "parameter cut off": "MS715 MS716",
    "parameter in no optimizer": "MS712",
    "probabilities where log-probabilities are due": "MS738",
    "rate of a group is zero": "MS719",
    "samples mixed by a maximum": "MS759",
    "weights decay to nothing": "MS744",
    "copy never follows": "MS763",
    "optimizer made anew every step": "MS766",
    "one term drowns the others": "MS757",
    "output cannot reach the targets": "MS721",
    "softmax over the wrong axis": "MS738",
}


def judge(command: Sequence[str], ranks: int) -> dict[str, Any]:
    """Watch a script; programs of several ranks are started by torchrun, as their users do."""
    sys.path.insert(0, str(ROOT))
    if ranks > 1:
        return _read(_by_torchrun(command, ranks))
    import modelscope_cli

    record = modelscope_cli.watch(command[0], arguments=list(command[1:]))
    return _read(json.loads(json.dumps(record.to_dict())))


def _by_torchrun(command: Sequence[str], ranks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        start = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
        ]
        watch = ["-m", "modelscope_cli", "watch", "--quiet", "--out", folder, "--format", "json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*start, *watch, *command], env=environment, capture_output=True, text=True, check=False
        )
        report = Path(folder) / "report.json"
        if not report.exists():
            raise RuntimeError(done.stderr[-300:])
        return json.loads(report.read_text())


def kinds_of(code: str) -> list[str]:
    """Return the kinds that a rule names."""
    return [kind for kind, codes in CODES.items() if code in codes.split()]


def _read(record: dict[str, Any]) -> dict[str, Any]:
    """Keep warnings and errors, in the order in which they are told."""
    if record["exit_code"]:
        return {"trouble": f"the script ended with exit code {record['exit_code']}"}
    findings = [
        {
            "kinds": kinds_of(one["code"]),
            "step": one["since_step"],
            "says": f"{one['code']} {one['layer'] or ''}: {one['message']}",
        }
        for one in record["findings"]
        if one["severity"] in ALARMS
    ]
    return {"verdict": record.get("verdict"), "findings": findings}
