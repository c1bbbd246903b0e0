"""Documents of trainings that nobody ran: as many layers and steps as a test wants, under any names."""

import math
import random

NAMES = ("conv1", "layer1.0.conv1", "layer1.0.relu", "layer1.1.conv1", "fc")
HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "<svg onload=alert(2)>.weight",
    "\"'><b>quoted</b> & 'apos'",
    "{{7*7}}${7*7}<%= 7 %>",
    "javascript:alert(3)",
    "-->]]><!--",
    "right\u202eto left \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "bell\x07 escape\x1b[31m null\x00 line\nbreak",
    "Ω≈ç√∫ 模型 🦊",
    "a" * 10_000,
    "same",
)


def watch_document(names=NAMES, steps=24, seed=0, findings=None):
    """Return what `watch --json` might have printed."""
    draw = random.Random(seed)
    recorded = list(range(steps))

    def walk(scale):
        value, values = scale, []
        for _ in recorded:
            value *= math.exp(draw.gauss(0, 0.2))
            values.append(round(value, 9))
        return values

    def layer(n, name):
        counts = [[draw.randrange(1000) for _ in range(66)] for _ in recorded]
        return {
            "model": "Net",
            "name": name,
            "type": ("Conv2d", "ReLU", "Linear")[n % 3],
            "order": n,
            "call": 0,
            "series": {
                "step": recorded,
                "mean": [round(draw.gauss(0, 1), 9) for _ in recorded],
                "std": walk(1.0),
                "zero_fraction": [round(draw.random(), 9) for _ in recorded],
                "near_zero_fraction": [round(draw.random(), 9) for _ in recorded],
                "nan_count": [0] * steps,
                "inf_count": [0] * steps,
                "grad_norm": [None, *walk(1e-3)[1:]],
                "non_finite_since": None,
                "histogram": {"edges": [2.0 ** (k / 2 - 20) for k in range(65)], "counts": counts},
                "dead_fraction": [0.25] * steps if n % 3 == 1 else None,
                "channels": 64,
                "dead_channels": [3, 7] if n % 3 == 1 else [],
                "saturated_fraction": None,
            },
        }

    def parameter(name):
        return {
            "model": "Net",
            "name": f"{name}.weight",
            "optimizer": "SGD",
            "shape": [8, 8],
            "series": {
                "step": recorded,
                "grad_norm": walk(0.1),
                "weight_norm": walk(5.0),
                "update_ratio": walk(1e-3),
            },
            "facts": None,
        }

    def scalars(values):
        return [{"optimizer": "SGD", "step": recorded, "value": values, "group": 0}]

    if findings is None:
        findings = [finding("MS705", names[min(2, len(names) - 1)], steps // 2)]
    return {
        "schema": "modelscope/watch/1",
        "tool": {"version": "0.1.0", "python": "3.11", "torch": "2.6", "torchvision": "0.21"},
        "argv": ["watch", "train.py", names[0]],
        "model": {
            "source": "script",
            "name": names[0],
            "class": names[0],
            "weights": {"requested": "script", "resolved": "in training", "origin": names[0], "sha256": None},
        },
        "input": None,
        "device": "cpu",
        "dtype": "float32",
        "seed": None,
        "warnings": [{"code": "x", "message": names[0]}],
        "elapsed_ms": 1234.5,
        "steps": steps,
        "recorded": steps,
        "exit_code": 0,
        "ranks": 1,
        "near_zero": 0.05,
        "layers": [layer(n, name) for n, name in enumerate(names)],
        "parameters": [parameter(name) for name in names],
        "loss": scalars(walk(2.3)),
        "lr": scalars([0.1] * steps),
        "events": [{"step": 1, "kind": "skipped", "message": names[0]}],
        "facts": {
            "inputs": [],
            "criteria": [],
            "optimizers": [],
            "models": [],
            "idle": [],
            "backwards": steps,
            "ranks": None,
            "schedules": [],
            "time": None,
        },
        "findings": findings,
        "births": [],
        "verdict": "fault" if findings else "nothing wrong",
        "reason": None,
        "trials": [],
        "fix": None,
        "tried": None,
    }


def finding(code, layer, step, follows=None):
    return {
        "code": code,
        "rule": "dying-units",
        "severity": "error",
        "layer": layer,
        "since_step": step,
        "value": 1.0,
        "threshold": 0.9,
        "message": f"all of {layer} is zero",
        "hint": "lower the learning rate",
        "place": "train.py:31",
        "follows": follows,
        "proved": None,
    }
