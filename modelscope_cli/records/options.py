"""What the command line adds to the parameters of the public functions.

Name, type and default of an option come from the function's signature, its help from the docstring. Here is the
rest: short flag, metavar, panel in the help, completion, and bounds, which also hold in Python. Standard library
only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.naming import LAST_SEED, LONGEST_RUN
from modelscope_cli.records.summary import COLORS


@dataclass(frozen=True, slots=True)
class Option:
    """The properties of an option that are not in its function.

    Attributes:
        metavar: the word for its value in the help.
        short: such as `-w`.
        flag: the long spelling, if it is not the name of the parameter.
        least, most: the range of a number; `above` and `below` leave out its ends.
        choices: all words that it takes.
        completes: words for shell completion, or the name of a function of `shell/completion.py`.
        shown: the default as shown in the help; empty for none.
        variable: environment variable that sets it.
        help: its help, if the docstring of the function has none.
        kind: for an option that only the command line has: `text`, `texts`, `path`, `whole`, `real` or `flag`, with
            `default`; empty if the function has it.
    """

    metavar: str = ""
    short: str = ""
    flag: str = ""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    completes: str | tuple[str, ...] = ()
    shown: str | None = None
    variable: str | None = None
    help: str = ""
    kind: str = ""
    default: Any = None

    @property
    def is_list(self) -> bool:
        """Whether its value is a comma-separated list of any length."""
        return self.metavar in ("A,B,...", "LIST", "NAMES")


OPTIONS = "Options"  # the panel of a command's own options
ARGUMENTS = "Arguments"
# Sequential colour maps of matplotlib, and two diverging ones.
_COLOUR_MAPS = ("viridis", "magma", "inferno", "plasma", "cividis", "gray", "turbo", "coolwarm", "RdBu_r")
OUTPUT_KINDS = ("auto", "classes", "segmentation", "depth", "detection", "embedding")
MODES = ("auto", "eval", "train")
_FORMATS = ("auto", "table", "tsv", "csv", "json", "markdown", "brief")
CI_FORMATS = ("github", "sarif", "gitlab")
"""Formats of the commands that return findings."""
_NAME = (
    "A torchvision name (resnet34), timm:NAME, hf:NAME, a checkpoint, module:attr, or path/to/file.py:attr."
)
_COLOR = f"Column that colours the graph: {', '.join(COLORS)}."
_FAIL_ON = "Exit with 1 at a finding of this severity or worse."
_PICTURES = "Images: files, folders, globs, @list.txt, '-'"


def _options(text: str) -> dict[str, Option]:
    """Parse short declarations of options: `target TARGET -t, depth N >=0, scores auto|softmax`.

    After the name come the metavar, a short flag, bounds and choices, each optional.
    """
    return {name: _option(words) for name, *words in (row.split() for row in text.split(", "))}


def _option(words: Sequence[str]) -> Option:
    properties: dict[str, Any] = {}
    for word in words:
        if word.startswith(">="):
            properties["least"] = float(word[2:])
        elif word.startswith("<="):
            properties["most"] = float(word[2:])
        elif word.startswith(("<", ">")):
            properties["above" if word[0] == ">" else "below"] = float(word[1:])
        elif "|" in word:
            properties["choices"] = tuple(word.split("|"))
        else:
            properties["short" if word.startswith("-") else "metavar"] = word
    return Option(**properties)


def _flag(text: str, short: str = "") -> Option:
    return Option(help=text, short=short, kind="flag", default=False)


def _format(*more: str) -> Option:
    text = f"auto (table on a terminal and in the log of CI, else tsv), {', '.join((*_FORMATS[1:], *more))}."
    names = (*_FORMATS, *more)
    return Option("FORMAT", "-f", kind="text", help=text, completes=names, default="auto")


def _table(*choices: str, text: str = "Which table to print.") -> Option:
    return Option(choices=choices, help=text, kind="text", default=choices[0])


_MODEL = Option(
    "MODEL", kind="text", help="The model; see `modelscope help model`.", completes="name_or_file", shown=""
)
_IMAGES = Option(
    "IMAGE",
    help=f"{_PICTURES}. One tensor file (.pt, .npy, .safetensors) replaces them; without images the model runs on "
    "seeded noise of its input size.",
    kind="texts",
)
_SAME = Option("MODEL", "-m", kind="text", help=_NAME, completes="name", shown="")
_DATA = Option(
    "DIR",
    kind="text",
    help="A folder with one subfolder of images per class. Without it, ten classes of drawn shapes.",
    shown="",
)
_BLOCKS = Option(
    "DIR",
    help="Folder for the report and, for several batches of image files, every finished block, for "
    "--resume. Blocks are computed with one thread; torchrun uses all cores.",
)
_FOLDER = Option(
    "DIR", help="Folder for the report and the figures.", kind="path", shown="runs/COMMAND-MODEL"
)
_SUBJECT = {"first": _MODEL, "images": _IMAGES}
_SAVE = Option(help="Write the report, or only print.", kind="flag", default=True)
_STEPS = Option("N", least=1, most=LONGEST_RUN)
_CHANGE = {
    "init": Option(
        "NAME", choices=("default", "kaiming-normal", "kaiming-uniform", "kaiming", "xavier", "lsuv")
    ),
    "activation": Option("NAME", completes=("relu", "leaky", "general")),
    "norm_layer": Option("NAME", choices=("batch", "layer", "group", "instance", "running", "none")),
    **_options("freeze PATTERN, train_only PATTERN"),
}
_TRAINING_DATA = {
    "loaders": Option("FILE.py:NAME"),
    "pictures": Option("N", least=20),
    "size": Option("N", least=8, most=4096),
}
_LEARNING = _options(
    "batch N -b >=1, optimizer NAME sgd|momentum|nesterov|adamw, label_smoothing E >=0 <=1, weight_decay L >=0"
)
_LEARNER = {"model": Option("MODEL", "-m", kind="text", help=_NAME, completes="name", shown="resnet18")}

# Panels that many commands share. A command has the options that its function takes.
SHARED: Mapping[str, Mapping[str, Option]] = {
    "Layers": {
        "layer": Option(
            "PATTERN",
            "-l",
            help="Layers to select (repeatable); see `modelscope help layers`: conv, 'layer1.*', relu@-1. "
            "Also layer1.0.conv1, type:Conv2d, 're:^layer[12]', conv@16, relu@1..4.",
            completes="layers",
        ),
        "exclude": Option("PATTERN", help="Leave out these layers.", completes="layers"),
        "hook": Option(
            "HOOK",
            help="Change values inside the model (repeatable); see `modelscope help hooks`: zero@layer3, "
            "pre:add=10@fc. Syntax [KIND:]ACTION[=ARGS]@PATTERN: 'zero[3,7]@conv1', "
            "grad:clamp=-1,1@conv, call=hooks.py:fn@relu. Actions: zero, scale, add, clamp, noise, "
            "mean, keep, print, save, nan-to-num, raise-on-nan, call. Kinds: forward, pre, grad.",
            completes="hooks",
        ),
    },
    "Model": {
        "mode": Option(
            choices=MODES,
            help="The mode: eval, or train, in which batch norm uses the batch and dropout is active. auto: "
            "eval, but train for the loss of a detection model.",
        ),
        "model": Option("MODEL", "-m", kind="text", help=_NAME, completes="name", shown="resnet34"),
        "weights": Option("WEIGHTS", "-w", completes=("auto", "none", "DEFAULT", "IMAGENET1K_V1")),
        **_options("checkpoint FILE -c, key NAME, strict, num_classes N >=1, model_arg KEY=VALUE"),
        "device": Option("DEVICE", "-d", completes=("auto", "cpu", "cuda", "mps", "xpu")),
        "dtype": Option("DTYPE", completes=("float32", "bfloat16", "float16")),
        "seed": Option("N", least=0, most=LAST_SEED),
        "output_kind": Option("KIND", choices=OUTPUT_KINDS),
    },
    "Input": {
        **_options("input_shape SHAPE"),
        "input": Option(
            "NAME=SPEC",
            help="An input by name (repeatable): an image, a tensor file, or a shape of noise: "
            "pixel_values=photo.jpg, input_ids=int64:1,16. Images of one name are stacked.",
            kind="texts",
        ),
        **_options("size H[,W], mean R,G,B, std R,G,B, batch N -b >=1, workers N >=0"),
    },
    "Output": {
        "out": Option("DIR", help="Folder for the report and the figures.", shown="runs/COMMAND-MODEL"),
        **_options("resume"),
        "save": _SAVE,
        "force": _flag("Overwrite files, write into a folder that is not empty."),
        "columns": Option(
            "A,B,...", kind="text", help="Only these columns, in this order.", completes="columns"
        ),
        "sort": Option(
            "COLUMN",
            kind="text",
            help="Sort the rows, largest number first; COLUMN:asc reverses the order. JSON keeps its order.",
            completes="columns",
        ),
        "top": Option("N", help="Show only the first N rows. JSON has all.", kind="whole", least=1),
        "all": _flag("Show every row, even of a long table."),
        "format": _format(),
        "json": _flag("Short for --format json."),
        "output": Option(
            "FILE",
            "-o",
            help="Write to a file; the suffix decides the format (.txt .tsv .csv .json .md).",
            kind="path",
        ),
        "html": Option(
            "FILE",
            help="Also save the result as a page for the browser: one self-contained file.",
            kind="path",
        ),
        "verbose": _flag("Show the image preprocessing in full.", "-v"),
        "quiet": _flag("No notes and no progress on stderr.", "-q"),
        "debug": _flag("Show the traceback of an error."),
    },
}

# The options of single commands, by panel; `first` and `images` say which arguments they have. A command that is
# not here has both, and the options of its function.
OWN: Mapping[str, Mapping[str, Mapping[str, Option]]] = {
    "summary": {
        ARGUMENTS: {
            "first": Option("MODEL", kind="text", help=_NAME, completes="name_or_file", shown=""),
            "images": _IMAGES,
        },
        OPTIONS: {
            **_options("depth N >=0, freeze PATTERN"),
            "graph": Option(
                "FILE", help="Also save the graph of the model (.svg, .png, .pdf, .dot, .mmd).", kind="path"
            ),
            "color": Option("COLUMN", kind="text", help=_COLOR, completes=COLORS),
        },
        "Training step": _options("train, optimizer NAME, amp bfloat16|float16, fit BYTES"),
        "Model": {"model": _SAME},
    },
    "stats": {
        ARGUMENTS: _SUBJECT,
        OPTIONS: _options("near_zero T >=0, plot FILE"),
        "Output": {
            "table": _table(
                *("layers", "batch-norm", "attention", "channels"),
                text="Table to print; channels lists dead channels, batch-norm needs --mode train.",
            ),
            "out": _BLOCKS,
        },
    },
    "featuremaps": {
        ARGUMENTS: _SUBJECT,
        OPTIONS: {
            "channels": Option("LIST", shown=""),
            **_options("max_channels N >=1, strongest, scale channel|layer"),
            "cmap": Option("NAME", completes=_COLOUR_MAPS),
            "cell": Option("PIXELS", least=1, most=2048, shown="at least 96"),
            **_options("overlay, attention"),
            "top_images": Option("N", least=0, most=25, shown=""),
            "save_tensors": Option("FILE", help="Save the outputs as .safetensors.", kind="path"),
        },
        "Output": {"out": _FOLDER},
    },
    "predict": {
        ARGUMENTS: {
            "first": _MODEL,
            "images": Option("IMAGE", help=f"{_PICTURES}; or one file of tensors.", kind="texts"),
        },
        OPTIONS: {
            **_options(
                "top K >=1, labels FILE, scores auto|softmax|sigmoid, threshold P >=0 <=1, temperature T >0"
            ),
            "doctor": _flag(
                "Apply the usual preprocessing mistakes one at a time, and count the changed predictions."
            ),
        },
        "Against the truth": {
            "truth": Option("folders|FILE"),
            "table": Option(
                choices=("measures", "classes", "confusions", "calibration", "worst"),
                kind="text",
                help="Table of --truth to print; measures by default.",
                shown="",
            ),
        },
        "Output": {"out": _BLOCKS},
    },
    "explain": {
        ARGUMENTS: _SUBJECT,
        "Explanation": {
            **_options("method NAMES, target TARGET -t"),
            "layer": Option("LAYER", "-l", shown="found by tracing a run back from the score"),
        },
        "Receipt": {
            **_options("receipt KIND"),
            **_options("require TEST"),
        },
        "Output": {
            "save": _SAVE,
            "save_tensors": Option("FILE", help="Save the cells of the maps as .safetensors.", kind="path"),
        },
    },
    "watch": {
        ARGUMENTS: {
            "script": Option("SCRIPT", kind="text", help="The training script, or with -m a module."),
            **_options("arguments ARGUMENTS"),
        },
        OPTIONS: {
            **_options("module -m"),
            "every": Option(
                "K", least=1, most=LONGEST_RUN, shown="every step at first, then progressively fewer"
            ),
            "steps": _STEPS,
            **_options("abort_on nan|findings"),
            "fail_on": Option(choices=("warning", "error"), kind="text", help=_FAIL_ON),
            "strict": _flag("With --fail-on: exit with 1 also if the verdict is `cannot tell yet`."),
            **_options("report DIR"),
        },
        "Output": {"format": _format(*CI_FORMATS)},
    },
    "grads": {
        ARGUMENTS: _SUBJECT,
        "Loss": {
            "loss": Option("LOSS", completes="losses"),
            **_options("target TARGET -t, label_smoothing E >=0 <=1, weight_decay L >=0"),
        },
        "Clipping": _options("clip V >0, clip_norm V >0"),
        "What is trained": _options("freeze PATTERN, train_only PATTERN"),
        "Output": {"save": _SAVE, "table": _table("parameters", "activations", "batch-norm")},
    },
    "train": {
        ARGUMENTS: {"first": _MODEL, "folder": _DATA},
        "Data": _TRAINING_DATA,
        OPTIONS: {"fail_on": Option(choices=("warning", "error"), kind="text", help=_FAIL_ON)},
        "Training": {
            "steps": _STEPS,
            **_LEARNING,
            **_options("lr R >0, schedule NAME constant|one-cycle|cosine, clip_norm V >0"),
            **_options("callback FILE:CLASS, vary OPTION=A,B"),
        },
        "Change the model": _CHANGE,
        "Model": _LEARNER,
        "Output": {"every": Option("K", least=1, most=LONGEST_RUN)},
    },
    "lrfind": {
        ARGUMENTS: {"first": _MODEL, "folder": _DATA},
        "Data": _TRAINING_DATA,
        "Sweep": {
            "low": Option("R", flag="--from"),
            "high": Option("R", flag="--to"),
            **_options("steps N >=3"),
        },
        "Training": _LEARNING,
        "Change the model": _CHANGE,
        "Model": _LEARNER,
    },
    "ablate": {
        ARGUMENTS: _SUBJECT,
        OPTIONS: _options("by_channel, method zero|mean|shuffle, target TARGET -t"),
        "Output": {"save": _SAVE},
    },
    "prune": {
        ARGUMENTS: _SUBJECT,
        "What is cut": {
            **_options("amount SHARE, method l1|l2|random|activation, by_channel"),
            "global_": Option(flag="--global"),
            **_options("sweep A,B,..."),
        },
        "Output": {**_options("save_weights FILE"), "table": _table("drift", "layers")},
    },
    "attack": {
        ARGUMENTS: {
            "first": _MODEL,
            "images": Option("IMAGE", help="One image, or '-' for standard input.", kind="texts"),
        },
        "Attack": {
            **_options("method fgsm|ifgsm|pgd, norm linf|l2, epsilon E -e"),
            "steps": Option("N", least=1, shown="ifgsm 10, pgd 20"),
            **_options("target TARGET -t"),
        },
        "Output": {"out": _FOLDER},
    },
    "check": {
        ARGUMENTS: {
            "first": Option("MODEL", kind="text", help=_NAME, completes="name_or_file", shown=""),
            "images": _IMAGES,
        },
        "Rules": {
            "select": Option("CODES", completes="rules"),
            "ignore": Option("CODES", completes="rules"),
            **_options("set CODE=THRESHOLD, fail_on SEVERITY, baseline FILE, update_baseline"),
        },
        "Budgets, for one image": _options(
            "max_params N, max_macs N, max_memory BYTES, max_train_memory BYTES, expect_output SHAPE"
        ),
        "Data set": {
            "against": Option(
                "FOLDER",
                help="A second data set, which must not share images with the first (repeatable).",
                kind="texts",
            )
        },
        "Model": {
            "mode": Option(
                choices=MODES,
                help="Mode of the forward and backward pass. auto: eval, but train if no batch norm has seen a "
                "batch yet.",
            ),
            "model": _SAME,
        },
        "Output": {"out": _BLOCKS, "format": _format(*CI_FORMATS, "junit")},
    },
    "rules": {ARGUMENTS: {"which": Option("RULE", completes="rules")}},
    "diff": {
        ARGUMENTS: {
            "a": Option("A", kind="text", help="A model, a checkpoint file, or a saved result.", shown=""),
            "b": Option("B", kind="text", help="A second one; without it, A with the settings of --b-..."),
            "images": _IMAGES,
        },
        OPTIONS: {
            "tolerance": Option(
                "T",
                "-t",
                least=0,
                shown="0 for tensors and results, the rounding of the dtype for statistics, and for activations "
                "that of assert_close: 1.3e-6, 1e-3 float16, 1.6e-2 bfloat16",
            ),
            **_options("plot FILE, rank_layers"),
        },
        "Model": _options("model MODEL -m"),
        "B, where it differs from A": {
            **_options("b_weights WEIGHTS, b_checkpoint FILE, b_key NAME, b_device DEVICE, b_dtype DTYPE"),
            "b_mode": Option(choices=MODES),
            "b_seed": Option("N", least=0, most=LAST_SEED),
            **_options("b_compile, b_quantize SCHEME int8wo|int8dq|int4wo|float8wo"),
        },
        "Output": {"all": _flag("Show every row, including equal ones.")},
    },
    "report": {ARGUMENTS: _options("result RESULT")},
    "weights": {
        ARGUMENTS: _options("file FILE"),
        OPTIONS: {
            **_options("layer PATTERN -l, key NAME"),
            "depth": Option(
                "N", help="Show a tree of N levels, with sums, instead of the tensors.", kind="whole", least=1
            ),
            **_options("stats, convert FILE"),
            "scan": _flag("Only look for code, in every file of a folder: one row per file."),
            "fail_on": Option(
                "WHAT",
                choices=("call", "dangerous", "unknown", "never"),
                kind="text",
                help="When to exit with 1. call: for dangerous code and for calls of unknown functions and "
                "classes; dangerous: only for dangerous code; unknown: also for objects of unknown "
                "classes; never.",
                default="call",
            ),
        },
        "Output": {"format": _format(*CI_FORMATS)},
    },
    "models": {ARGUMENTS: _options("pattern PATTERN")},
    "schema": {ARGUMENTS: {"document": Option("DOCUMENT", completes="documents")}},
    "demo": {ARGUMENTS: _options("folder DIR")},
    "help": {
        ARGUMENTS: {
            "what": Option(
                "TOPIC|COMMAND",
                kind="text",
                help="model, input, output, layers or hooks; a command; or agents, what coding agents need.",
                completes="topics",
            )
        }
    },
}


def own(command: str) -> Mapping[str, Mapping[str, Option]]:
    """Return the arguments and options of one command, by panel."""
    return OWN.get(command, {ARGUMENTS: _SUBJECT})
