"""`modelscope watch --try-fixes`: which trials name which kind, beside the rules of `adapters/watch.py`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from watch import ALARMS, ROOT, kinds_of

TRIALS = {
    "clear gradients": ("no zero_grad",),
    "no clipping": ("clipped to nothing",),
    "no double softmax": (
        "softmax before cross-entropy",
        "sigmoid on the logits",
        "probabilities where log-probabilities are due",
    ),
    "missing parameters": (
        "optimizer of another model",
        "optimizer holds the head only",
        "head replaced after the optimizer",
        "blocks in a Python list",
        "module in no optimizer",
        "parameter in no optimizer",
    ),
    "unfreeze": ("frozen by mistake",),
    "usual modes": ("trained in evaluation mode",),
    "no weight decay": ("weights decay to nothing",),
    "constant rate": ("learning rate decayed to nothing", "schedule stepped by epoch"),
    "finite batches": ("input NaN",),
    "standardised inputs": ("input not normalised",),
    "default initialisation": ("huge initialisation", "zero initialisation", "constant initialisation"),
    "random order": ("labels sorted",),
    "no dropout": ("dropout near one",),
    "sign": ("loss in the wrong direction",),
    "rate / 10": ("learning rate far too high", "learning rate too high late"),
    "rate / 100": ("learning rate far too high", "learning rate too high late"),
    "rate / 1000": ("learning rate far too high", "learning rate too high late"),
    "rate / 10000": ("learning rate far too high", "learning rate too high late"),
    "rate x 10": ("learning rate far too low", "loss divided once too often"),
    "rate x 100": ("learning rate far too low", "loss divided once too often"),
    "rate x 10000": ("learning rate far too low", "loss divided once too often"),
    # It names the optimizer's line and its rate
    "fresh AdamW": ("learning rate far too low", "learning rate far too high"),
}
EXAMINED = {"MS791": ("branch detached",), "MS792": ("labels shuffled",), "MS793": ()}


def judge(command: Sequence[str], ranks: int) -> dict[str, Any]:
    """Watch a script, and try what makes it learn; programs of several ranks are not tried."""
    if ranks > 1:
        from watch import judge as judge_without

        return judge_without(command, ranks)
    sys.path.insert(0, str(ROOT))
    import modelscope_cli

    record = modelscope_cli.watch(command[0], arguments=list(command[1:]), try_fixes=True)
    document = json.loads(json.dumps(record.to_dict()))
    if document["exit_code"]:
        return {"trouble": f"the script ended with exit code {document['exit_code']}"}
    findings = [
        {
            "kinds": sorted({*kinds_of(one["code"]), *_kinds_by_trial(one)}),
            "step": one["since_step"],
            "says": f"{one['code']} {one['layer'] or ''}: {one['message']}",
        }
        for one in document["findings"]
        if one["severity"] in ALARMS
    ]
    return {"verdict": document["verdict"], "findings": findings}


def _kinds_by_trial(finding: dict[str, Any]) -> Sequence[str]:
    if finding["code"] in EXAMINED:
        return EXAMINED[finding["code"]]
    return TRIALS.get(finding["proved"]["trial"], ()) if finding["proved"] else ()
