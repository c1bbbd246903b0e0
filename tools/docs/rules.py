"""One page a rule, and the list of them."""

import ast
from functools import cache

import modelscope_cli as ms
from modelscope_cli.records.findings import RuleInfo
from tools.docs import ROOT, examples
from tools.docs.long_examples import RANKS, TIMED, TRIED
from tools.docs.markdown import cell, table

EXAMPLES = examples.TRAININGS | TIMED | RANKS | TRIED
GROUPS = {
    "MS0": "Code in a checkpoint (`check`)",
    "MS1": "Weights and input (`check`)",
    "MS2": "Activations (`check`)",
    "MS3": "Gradients (`check`)",
    "MS4": "Structure (`check`)",
    "MS5": "Budgets (`check`)",
    "MS6": "Behaviour (`check`)",
    "MS7": "Training (`watch`, `train`)",
    "MS8": "Data sets (`check` of folders)",
}
_CHECK = "modelscope check demo/tiny_resnet.py:TinyResNet demo/star.png"
_HEALTHY = f"{_CHECK} -c demo/tiny_resnet.safetensors"
_FOLDERS = "modelscope check demo/tiny_resnet.py:TinyResNet demo/shapes -c demo/sick.safetensors"
_PAYLOAD = """\
import os

import torch


class Payload:
    def __reduce__(self):
        return os.system, ("echo hello",)


torch.save({"epoch": 3, "extra": Payload()}, "last.pt")"""
_FUNCTION = """\
import torch
from torchvision.transforms.functional import resize

torch.save({"epoch": 3, "transform": resize}, "last.pt")"""
# By code: what writes a file, if anything, and the command that reports the rule.
COMMANDS = {
    "MS001": (_PAYLOAD, f"{_CHECK} -c last.pt"),
    "MS002": (_FUNCTION, f"{_CHECK} -c last.pt"),
    "MS103": ("", f"{_HEALTHY} --mean 0,0,0 --std 0.004,0.004,0.004"),
    "MS501": ("", f"{_HEALTHY} --max-params 50k"),
    "MS502": ("", f"{_HEALTHY} --max-macs 10M"),
    "MS503": ("", f"{_HEALTHY} --max-memory 1MB"),
    "MS504": ("", f"{_HEALTHY} --expect-output 1,100"),
    "MS505": ("", f"{_HEALTHY} --max-train-memory 1MB"),
    "MS506": ("", f"{_FOLDERS} --min-accuracy 0.9"),
}


# By code: what makes the data set `photos`, two classes of eight images each, break the rule.
IMAGES = """\
from pathlib import Path
from PIL import Image


def noise(seed, size=(96, 96)):
    image = Image.effect_noise((12, 12), 90 + seed).resize(size)
    return Image.merge("RGB", [image.rotate(90 * n) for n in range(3)])


for n in range(16):
    file = Path("photos") / ("cat" if n < 8 else "dog") / f"{n}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    noise(n).save(file)
"""
DATA_SETS = {
    "MS801": 'Path("photos/cat/broken.png").write_bytes(b"not an image")',
    "MS802": 'Path("photos/cat/copy.png").write_bytes(Path("photos/cat/0.png").read_bytes())',
    "MS804": 'Path("val/cat").mkdir(parents=True)\n'
    'Path("val/cat/leak.png").write_bytes(Path("photos/cat/0.png").read_bytes())',
    "MS805": 'Path("photos/dog/copy.png").write_bytes(Path("photos/cat/0.png").read_bytes())',
    "MS811": 'Path("val/bird").mkdir(parents=True)\nnoise(50).save("val/bird/0.png")',
    "MS813": 'Path("val/cat").mkdir(parents=True)\n'
    'Image.open("photos/cat/0.png").resize((60, 60)).save("val/cat/small.png")',
    "MS812": 'Image.new("RGB", (96, 96)).save("photos/cat/black.png")',
}


def overview() -> str:
    """Return every rule, group by group, with what it says; a guide has those of trainings."""
    rules = ms.list_rules().rules
    parts = []
    for prefix, title in GROUPS.items():
        inside = [rule for rule in rules if rule.code.startswith(prefix)]
        parts.append(f"## {title}")
        if prefix == "MS7":
            names = [f"[{rule.code}]({rule.code}.md) {rule.name}" for rule in inside]
            parts += [
                "[My model does not learn](../training.md) has them by symptom.",
                f"{', '.join(names)}.",
            ]
            continue
        rows = [
            (f"[{rule.code}]({rule.code}.md) {rule.name}, {rule.severity}", cell(rule.sentence))
            for rule in inside
        ]
        parts.append(table(("rule", "fires when"), rows))
    text = "\n\n".join(parts)
    if sum(f"({rule.code}.md)" in text for rule in rules) != len(rules):
        raise ValueError("a group of rules has no heading here")
    return text


def page(rule: RuleInfo) -> str:
    """Return the page of one rule: what `modelscope help CODE` says, and an example."""
    command = "watch" if rule.code.startswith("MS7") else "check"
    severe = f" An error if {cell(rule.error_if)}." if rule.error_if else ""
    parts = [
        f"# {rule.code} {rule.name}",
        f"[`{command}`](../commands/{command}.md) {rule.level}: {cell(rule.sentence)}.{severe}",
        cell(_sentence(rule.why)),
        f"**Fix:** {_hint(rule.hint)}",
        f"**Threshold:** {cell(_threshold(rule))}: {cell(rule.measure)}.",
        f"**Source:** {cell(rule.source)}.",
        *_example(rule.code),
    ]
    return "\n\n".join(parts) + "\n"


def _example(code: str) -> list[str]:
    """Return a section with an example, and for trainings what to write instead."""
    if code in EXAMPLES:
        title = "Example"
        if code in TRIED:
            title = "Example, with `--try-fixes`"
        if code in RANKS:
            title = "Example, under torchrun"
        return [f"## {title}", f"```diff\n{examples.change(EXAMPLES[code])}\n```"]
    if code in DATA_SETS:
        against = " --against val" if code in ("MS804", "MS811", "MS813") else ""
        return [
            "## Example",
            f"```py\n{DATA_SETS[code]}\n```",
            f"`modelscope check photos{against}` reports it.",
        ]
    if code in COMMANDS:
        script, line = COMMANDS[code]
        return ["## Example", *([f"```py\n{script}\n```"] if script else []), f"```text\n{line}\n```"]
    if code in injuries():
        return ["## Example", f"```py\n{injuries()[code]}\n```"]
    return []


def _threshold(rule: RuleInfo) -> str:
    if rule.threshold is None:
        return "a budget that you set"
    return rule.threshold if isinstance(rule.threshold, str) else f"{rule.threshold:g}"


def _hint(text: str) -> str:
    """Return a hint as Markdown; in some a command comes first, and behind three blanks what it does."""
    command, _, about = text.partition("   ")
    if command.startswith("modelscope ") and about:
        return f"`{command}` {cell(about)}."
    return cell(_sentence(text))


def _sentence(text: str) -> str:
    """Return what the program says as a line of a list as a sentence of a page."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".") if text else ""


@cache
def injuries() -> dict[str, str]:
    """Return by code the function of `tests/rules/sick.py` that breaks the rule, with those that it calls."""
    source = (ROOT / "tests" / "rules" / "sick.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    parts = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    texts = {}
    variants = next(node.value for node in tree.body if isinstance(node, ast.Assign))
    assert isinstance(variants, ast.List)
    for row in variants.elts:
        assert isinstance(row, ast.Tuple)
        code, name = ast.literal_eval(row.elts[0]), ast.unparse(row.elts[1])
        if code not in texts and name != "itself":
            texts[code] = "\n\n\n".join(_with_helpers(source, parts, name))
    return texts


def _with_helpers(source: str, parts: dict[str, ast.stmt], name: str) -> list[str]:
    text = ast.get_source_segment(source, parts[name]) or ""
    names = [node.id for node in ast.walk(parts[name]) if isinstance(node, ast.Name)]
    helpers = [one for one in dict.fromkeys(names) if one in parts and one != name]
    return [*(ast.get_source_segment(source, parts[one]) or "" for one in helpers), text]
