"""The pages of `modelscope help`: topics that many commands share."""

from importlib import import_module

from modelscope_cli.shell.help import page, page_of_panel
from modelscope_cli.shell.pages import rows_of
from modelscope_cli.shell.typer_app import doc_of

_MODEL = {
    "resnet34": "a model of torchvision; `modelscope models` lists them",
    "timm:NAME": "a model of timm, once it is installed: pip install timm",
    "hf:FOLDER": "a folder that transformers saved: pip install transformers",
    "best.pth": "a checkpoint whose architecture is recognised by its tensors",
    "path/to/net.py:Net": "a class, a function or a module of a file of yours, which is run",
    "package.module:Net": "the same, from a package that can be imported",
}
_ABOUT_MODEL = (
    "A model is named by the first word or by --model. A word that is both a model and a file means the file."
)
_INPUT = (
    "Without images, a model is run on seeded noise of its own size. Images are files, folders, globs, @list.txt "
    "(one path per line), .tar shards, or '-' for "
    "standard input; one .pt, .npy or .safetensors file holds the tensors of one forward. Images are prepared as "
    "the weights say, or as for ImageNet if the weights do not say."
)
_OUTPUT = (
    "Results go to stdout, everything else to stderr: a table on a terminal, tab-separated values in a pipe. Files "
    "that are there already are overwritten only with --force. The exit code is 0; 1 if a check found something "
    "or two things differ; 2 for a command line that cannot be understood; 4 for what cannot be run; 130 after "
    "Ctrl-C."
)
_LAYERS = {
    "layer1.0.conv1": "exactly this layer; layer1.0.relu#1 is only its second call",
    "layer3": "a word that is the name of a layer means that layer",
    "'layer1.*'": "every layer whose name fits: * for anything, ? for one character, [12] for one of these",
    "conv, relu, linear": "every layer without layers inside whose class begins like this",
    "norm, pool": "if no class begins with the word: those that contain it",
    "type:Conv2d, 'type:*Norm'": "the class, exactly or as a pattern",
    "'re:^layer[12]'": "a regular expression, searched in the name",
    "conv@16, relu@-1, relu@1..4": "the 16th of them in the order of execution, the last, the first four",
    "@3": "the third of all layers",
}
_KINDS = {
    "(none)": "the output of a layer",
    "pre:": "the input of a layer",
    "grad:": "the gradient that arrives at its output",
    "param-grad:": "the gradients of its parameters, whose channels are the first dimension",
    "full-backward:": "the gradient that it passes on to its inputs",
}
_ACTIONS = {
    "zero, scale=2, add=10": "0, twice the value, ten more",
    "clamp=-1,1": "the nearest value in this range",
    "noise=0.1": "Gaussian noise of this standard deviation is added; --seed decides it",
    "mean": "the mean of the image and channel over all positions",
    "keep=5": "the five channels with the largest mean absolute value; 0 in all others",
    "shuffle": "the value of another position, the same one in every channel",
    "nan-to-num": "0 for NaN, the largest number for infinities",
    "raise-on-nan": "an error that names the call and counts the NaNs",
    "print": "nothing is changed; a line on stderr for every call",
    "save=FILE.safetensors": "nothing is changed; the values are written to a file",
    "call=hooks.py:fn": "what your function returns: fn(module, args, output)",
}
_ABOUT_LAYERS = (
    "--layer, --exclude, --freeze, --train-only and hooks take patterns. Several are combined; quote what the "
    "shell would expand."
)
_ABOUT_HOOKS = (
    "--hook '[KIND:]ACTION[=ARGS]@PATTERN' changes what flows through a model while it runs. Several hooks act in "
    "the order they are given. The model is put back afterwards, and no file is touched."
)
_CHANNELS = {
    "'zero[3,7]@conv1'": "only these channels",
    "'zero[0..15]@conv1'": "only the first sixteen",
    "'pre:add=2(0)@fuse'": "only the first of several inputs",
}
TOPICS: dict[str, list[tuple[str, str, dict[str, str]]]] = {
    "model": [("Models", _ABOUT_MODEL, _MODEL)],
    "input": [("Input", _INPUT, {})],
    "output": [("Output", _OUTPUT, {})],
    "layers": [("Layer patterns", _ABOUT_LAYERS, _LAYERS)],
    "hooks": [
        ("Hooks", _ABOUT_HOOKS, {}),
        ("Kinds: what is changed", "", _KINDS),
        ("Actions: what happens to each value", "", _ACTIONS),
        ("Parts", "", _CHANNELS),
    ],
}


def explain_command(name: str) -> str:
    """Return the page of a command with all its options."""
    command = getattr(import_module(f"modelscope_cli.commands.{name}.command"), name)
    return "\n".join(page(f"modelscope {name}", doc_of(command), is_whole=True)) + "\n"


def explain_topic(name: str) -> str:
    """Return the page of a topic, with its options if it is a panel of options."""
    lines = [line for section in TOPICS[name] for line in rows_of(*section)]
    if name.title() in ("Model", "Input", "Output"):
        lines += page_of_panel("stats", name.title())
    return "\n".join(lines[1:]) + "\n"
