"""How often a call waits for the device: an operator takes a tensor there and gives a number or a tensor here."""

import math
from pathlib import Path

from stand_in_runs import Python

SAMPLES = Path(__file__).parents[2] / "samples"

COUNT = """
import json
import modelscope_cli as ms
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, sys.argv[2])
from tiny_resnet import TinyResNet

device = sys.argv[1]

class Waits(TorchDispatchMode):
    n = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        taken = tree_leaves(result)
        is_of_device = any(x.device.type == device for x in given)
        has_left = not any(isinstance(x, torch.Tensor) and x.device.type != "cpu" for x in taken)
        # The size of these results depends on values.
        is_ragged = operator.overloadpacket.__name__ in ("nonzero", "masked_select", "_unique2")
        if is_of_device and operator._schema.returns and (has_left or is_ragged):
            self.n += operator.overloadpacket.__name__ != "is_pinned"
        return result

def waits(function):
    with Waits() as counted:
        function()
    return counted.n

torch.manual_seed(0)
model = TinyResNet().eval().to(device)
images = torch.randn(4, 3, 32, 32).to(device)
labels, one = torch.zeros(4, dtype=torch.long, device=device), images[:1]
"""

CALLS = """
print(json.dumps({
    "control: a forward": waits(lambda: model(images)),
    "control: a forward, and five numbers": waits(lambda: [x.item() for x in model(images)[0, :5]]),
    "stats, every column, 4 images at once": waits(lambda: ms.stats(model, images, batch=4)),
    "stats, every column, 2 batches read twice": waits(lambda: ms.stats(model, images, batch=2)),
    "stats, quantiles": waits(lambda: ms.stats(model, images, columns=["name", "mean", "p50"], batch=4)),
    "stats --mode train": waits(lambda: ms.stats(model, images, mode="train", batch=4)),
    "grads, one batch": waits(lambda: ms.grads(model, images, batch=4)),
    "grads, 2 batches": waits(lambda: ms.grads(model, images, batch=2)),
    "predict, 4 images": waits(lambda: ms.predict(model, images, batch=4)),
    "featuremaps, 5 outputs": waits(lambda: ms.featuremaps(model, one, max_channels=4)),
    "explain, one method": waits(lambda: ms.explain(model, one, method="hirescam", receipt="none")),
    "explain, two methods with their receipts": waits(lambda: ms.explain(model, one)),
    "summary": waits(lambda: ms.summary(model, images)),
    "observe, 3 forwards": waits(lambda: observed(3)),
}))
"""
OBSERVED = """
def observed(n):
    with ms.observe(model) as seen:
        for _ in range(n):
            model(images)
"""
# What is allowed: two waits a batch and pass, or what the result needs and three.
MOST = {
    "control: a forward": 0,
    "stats, every column, 4 images at once": 2,
    "stats, every column, 2 batches read twice": 2 * 2,
    "stats, quantiles": 2,
    "stats --mode train": 2,
    "grads, one batch": 2,  # the first output, which is asked what it is, and all that was found
    "grads, 2 batches": 2 + 1,
    "predict, 4 images": 3,
    "featuremaps, 5 outputs": 5 + 3 + 1,  # the last: blocks are compared with their last layers
    "explain, one method": 3 + 3,  # the map, its target and its baseline
    "explain, two methods with their receipts": 17 + 3,  # the same; each receipt needs 4 more maps
    "summary": 0,
    "observe, 3 forwards": 0,
}

TRAINING = """
model = TinyResNet().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def step():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()

# Whether there is time depends on the machine: here there is for every record, and to follow no other step.
from modelscope_cli.watching.schedule import Budget
Budget.allows = lambda self, step, after=None: after is not None
bare, watched = [waits(step) for _ in range(5)], []
with ms.watch(model, optimizer, out="watched", force=True):
    for _ in range(50):
        watched.append(waits(step))
entries = [json.loads(line) for line in open("watched/log.jsonl")]
steps = [entry["step"] for entry in entries if "step" in entry]
recorded = [entry["step"] for entry in steps if entry["recorded"]]
losses = [entry["loss"] for entry in steps]
print(json.dumps({"bare": bare, "watched": watched, "recorded": recorded, "losses": losses}))
"""


def test_results_leave_the_device_together(python: Python, accelerator: str) -> None:
    found = python(COUNT + OBSERVED + CALLS, accelerator, SAMPLES).json
    assert found["control: a forward, and five numbers"] == 5
    assert {what: found[what] for what, most in MOST.items() if found[what] > most} == {}


def test_a_watched_step_waits_twice_if_it_is_recorded_and_else_never(
    python: Python, accelerator: str
) -> None:
    outcome = python(COUNT + TRAINING, accelerator, SAMPLES)
    assert outcome.code == 0, outcome.err
    found = outcome.json
    waits, recorded = found["watched"], set(found["recorded"])
    assert found["bare"] == [0] * 5
    assert 20 < len(recorded) < 100
    assert {step: n for step, n in enumerate(waits) if step not in recorded and n} == {}
    # Facts are written as often as the number of steps doubles.
    assert sum(waits[step] > 2 for step in recorded) <= math.log2(len(waits)) + 2
    assert max(waits[step] for step in recorded if step > 8) <= 4
    # Nothing is lost because it is read later
    assert len(found["losses"]) > len(recorded)
    assert all(map(math.isfinite, found["losses"]))
