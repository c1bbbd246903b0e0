"""The overview of all commands, `modelscope --help`. Standard library only."""

from collections.abc import Iterator

from modelscope_cli.shell.pages import bold, entry, filled

ABOUT = "See what happens inside a PyTorch vision model."
HELP, HELP_ALL = ("-h", "--help"), "--help-all"
# Each command is the function of its name in the module of its name; its docstring begins with this sentence.
GROUPS = {
    "Look at a model": {
        "summary": "Print the layers of a model with their shapes, parameters and cost.",
        "stats": "Print statistics of every layer's output, over any number of images.",
        "featuremaps": "Save the feature maps of an image: a grid for each layer, and a contact sheet.",
        "predict": "Print what a model predicts for images: the most likely classes of each.",
        "explain": "Show which parts of an image are evidence for a class, and test how reliable each map is.",
    },
    "Look at a training": {
        "watch": "Run your own training script, unchanged, and see what happens inside its models.",
        "grads": "Run a forward and a backward pass, and print and plot the gradients.",
        "train": "Train a classifier for a few steps and show what happens inside it.",
        "lrfind": "Sweep the learning rate while training, suggest one, and restore everything.",
    },
    "Change a model, and measure the effect": {
        "ablate": "Ablate the layers of a model one by one, and measure how the prediction changes.",
        "prune": "Prune weights, and measure how far the predictions drift.",
        "attack": "Find a minimal perturbation of an image that fools the model, save it, and check the file.",
    },
    "Check and compare": {
        "check": "Check a model or a data set against rules, and exit with 1 if one is broken.",
        "rules": "List the rules of check, watch and train, with their thresholds and sources.",
        "verify": "Recompute a random sample of a stored result, and exit with 1 if it differs.",
        "diff": "Compare two checkpoints, two models, or one model under two settings; exit with 1 if they differ.",
    },
    "Files and names": {
        "report": "Make one self-contained page of a result, to view in a browser and to share.",
        "weights": "List the contents of a checkpoint and name its architecture, without loading it.",
        "models": "List the models of torchvision, or of timm, with parameters, multiply-adds and input size.",
        "schema": "Print the JSON Schema of what a command prints with --json.",
        "demo": "Put the samples into a folder: images, a tiny network with its weights, and a training script.",
        "help": "Explain what commands have in common: models, images, layer patterns, hooks, output.",
    },
}
COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}
_OPTIONS = {
    "-V, --version": "Show the version.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell, to copy it or to change the installation.",
    "-h, --help": "Show this page.",
}


def overview() -> str:
    """Return the page of all commands."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield f"{bold('Usage:')} modelscope COMMAND [ARGUMENTS] [OPTIONS]"
    yield ""
    yield from filled(ABOUT)
    for title, commands in GROUPS.items():
        yield ""
        yield bold(title)
        for name, about in commands.items():
            yield from filled(about, f"  {name:<13}", " " * 15)
    yield ""
    yield bold("Options")
    for option, about in _OPTIONS.items():
        yield from entry(option, about)
    yield ""
    yield from filled(
        "modelscope COMMAND --help explains a command, modelscope help what all of them have in common. "
        "python -m modelscope_cli COMMAND is the same."
    )
