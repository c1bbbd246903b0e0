"""The pages of `modelscope help`: topics that many commands share."""

from importlib.resources import files

from modelscope_cli.shell.help import page, page_of_panel
from modelscope_cli.shell.overview import rows_of
from modelscope_cli.shell.parameters import function_of
from modelscope_cli.shell.typer_app import doc_of

_MODEL = {
    "resnet34": "a torchvision model; `modelscope summary --list` lists them",
    "timm:NAME": "a timm model, once it is installed: pip install timm",
    "hf:FOLDER": "a folder saved by transformers: pip install transformers",
    "best.pth": "a checkpoint whose architecture is recognised from its tensors",
    "path/to/net.py:Net": "a class, function or module in a Python file, which is executed",
    "package.module:Net": "the same, in an installed package",
}
_ABOUT_MODEL = (
    "The model is the first argument, or --model. If a word names both a model and a file, it means the file."
)
_INPUT = (
    "Without images, a model runs on seeded noise of its input size. Images are files, folders, globs, "
    "@list.txt (one path per line), or '-' for standard input; one .pt, .npy or .safetensors "
    "file holds the input tensors. Images are preprocessed as the weights specify, otherwise as for "
    "ImageNet. If a model of your own fails at 224 x 224, the common sizes are tried."
)
_OUTPUT = (
    "Results go to stdout, as a table on a terminal and as tab-separated values in a pipe; everything else, "
    "including what your model prints, goes to stderr. Existing files are overwritten only with --force. The "
    "exit code is 0 on success; 1 if a check fails or two things differ; 2 for a usage error; 4 if the command "
    "cannot run; 130 after Ctrl-C."
)
_LAYERS = {
    "layer1.0.conv1": "exactly this layer; layer1.0.relu#1 is only its second call",
    "layer3": "a word that is the name of a layer means that layer",
    "'layer1.*'": "every layer whose name matches: * is anything, ? one character, [12] one of these",
    "conv, relu, linear": "every layer without sublayers whose class begins with this word",
    "norm, pool": "if no class begins with the word, every layer whose class contains it",
    "type:Conv2d, 'type:*Norm'": "the class name, exact or as a pattern",
    "'re:^layer[12]'": "a regular expression, searched in the name",
    "conv@16, relu@-1, relu@1..4": "the 16th in order of execution, the last, the first four",
    "@3": "the third of all layers in order of execution",
}
_KINDS = {
    "(none)": "the output of a layer",
    "pre:": "the input of a layer",
    "grad:": "the gradient that arrives at its output",
}
_ACTIONS = {
    "zero, scale=2, add=10": "multiply by 0 or 2, add 10",
    "clamp=-1,1": "limit the values to this range",
    "noise=0.1": "add Gaussian noise with this standard deviation; --seed seeds it",
    "mean": "the mean over all positions, per image and channel",
    "keep=5": "keep the five channels with the largest mean |value|; 0 in the others",
    "nan-to-num": "replace NaN by 0, infinities by the largest number",
    "raise-on-nan": "stop with an error that names the call and counts the NaNs",
    "print": "change nothing; print a line to stderr for every call",
    "save=FILE.safetensors": "change nothing; write the values to a file",
    "call=hooks.py:fn": "the result of your function: fn(module, args, output)",
}
_ABOUT_LAYERS = (
    "--layer, --exclude, --freeze, --train-only and hooks take patterns; several are combined. Quote patterns "
    "that contain *, ? or [ for the shell."
)
_ABOUT_HOOKS = (
    "--hook '[KIND:]ACTION[=ARGS]@PATTERN' changes values inside a model while it runs. Hooks run in the "
    "order given, each on the previous result. The model is restored afterwards, and no file changes."
)
_CHANNELS = {"'zero[3,7]@conv1'": "only these channels", "'zero[0..15]@conv1'": "only the first sixteen"}
TOPICS: dict[str, list[tuple[str, str, dict[str, str]]]] = {
    "model": [("Models", _ABOUT_MODEL, _MODEL)],
    "input": [("Input", _INPUT, {})],
    "output": [("Output", _OUTPUT, {})],
    "layers": [("Layer patterns", _ABOUT_LAYERS, _LAYERS)],
    "hooks": [
        ("Hooks", _ABOUT_HOOKS, {}),
        ("Kinds: which tensor changes", "", _KINDS),
        ("Actions: how it changes", "", _ACTIONS),
        ("Parts", "", _CHANNELS),
    ],
}


AGENTS = "agents"


def skill() -> str:
    """Return the instructions for coding agents."""
    return files("modelscope_cli").joinpath("SKILL.md").read_text(encoding="utf-8")


def explain_command(name: str) -> str:
    command = function_of(name)
    return "\n".join(page(f"modelscope {name}", doc_of(command), is_whole=True)) + "\n"


def explain_topic(name: str) -> str:
    """Return the page of a topic, with its options if it is a panel of options."""
    lines = [line for section in TOPICS[name] for line in rows_of(*section)]
    if name.title() in ("Model", "Input", "Output"):
        lines += page_of_panel("stats", name.title())
    return "\n".join(lines[1:]) + "\n"
