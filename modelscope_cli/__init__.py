"""See what happens inside a PyTorch vision model.

>>> import modelscope_cli as mscope
>>> mscope.summary("resnet34")

`dir(mscope)` lists the functions, and `help(mscope.summary)` explains one; each is imported when it is first used.
"""

TYPE_CHECKING = False  # type checkers know this name; importing `typing` would double the start-up time
__version__ = "0.2.0"
# The module of every function; the imports below say the same to type checkers.
_HOMES = {
    "ablate": "modelscope_cli.analysis.ablation.ablate",
    "check": "modelscope_cli.analysis.health.check",
    "check_images": "modelscope_cli.analysis.dataset.check_images",
    "demo": "modelscope_cli.examples",
    "diff": "modelscope_cli.analysis.comparison.diff",
    "doctor": "modelscope_cli.analysis.predictions.preprocessing_check",
    "explain": "modelscope_cli.analysis.explaining.explain",
    "featuremaps": "modelscope_cli.analysis.activations.featuremaps",
    "grads": "modelscope_cli.analysis.gradients.grads",
    "hook": "modelscope_cli.analysis.interventions",
    "list_models": "modelscope_cli.models.catalogue",
    "list_rules": "modelscope_cli.rules.registry",
    "load": "modelscope_cli.analysis.load",
    "lrfind": "modelscope_cli.training.lrfind",
    "make_report": "modelscope_cli.reporting",
    "observe": "modelscope_cli.analysis.activations.stats",
    "predict": "modelscope_cli.analysis.predictions.predict",
    "read": "modelscope_cli.records.reading",
    "scan": "modelscope_cli.analysis.weights.weights",
    "schema": "modelscope_cli.records.documents",
    "stats": "modelscope_cli.analysis.activations.stats",
    "summary": "modelscope_cli.analysis.summary.summary",
    "train": "modelscope_cli.training.train",
    "watch": "modelscope_cli.watching.watch",
    "weights": "modelscope_cli.analysis.weights.weights",
}
__all__ = ["__version__", *_HOMES, "testing"]  # noqa: PLE0604 -- keys, which are names

if TYPE_CHECKING:
    from modelscope_cli import testing as testing
    from modelscope_cli.analysis.ablation.ablate import ablate as ablate
    from modelscope_cli.analysis.activations.featuremaps import featuremaps as featuremaps
    from modelscope_cli.analysis.activations.stats import observe as observe
    from modelscope_cli.analysis.activations.stats import stats as stats
    from modelscope_cli.analysis.comparison.diff import diff as diff
    from modelscope_cli.analysis.dataset.check_images import check_images as check_images
    from modelscope_cli.analysis.explaining.explain import explain as explain
    from modelscope_cli.analysis.gradients.grads import grads as grads
    from modelscope_cli.analysis.health.check import check as check
    from modelscope_cli.analysis.interventions import hook as hook
    from modelscope_cli.analysis.load import load as load
    from modelscope_cli.analysis.predictions.predict import predict as predict
    from modelscope_cli.analysis.predictions.preprocessing_check import doctor as doctor
    from modelscope_cli.analysis.summary.summary import summary as summary
    from modelscope_cli.analysis.weights.weights import scan as scan
    from modelscope_cli.analysis.weights.weights import weights as weights
    from modelscope_cli.examples import demo as demo
    from modelscope_cli.models.catalogue import list_models as list_models
    from modelscope_cli.records.documents import schema as schema
    from modelscope_cli.records.reading import read as read
    from modelscope_cli.reporting import make_report as make_report
    from modelscope_cli.rules.registry import list_rules as list_rules
    from modelscope_cli.training.lrfind import lrfind as lrfind
    from modelscope_cli.training.train import train as train
    from modelscope_cli.watching.watch import watch as watch


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "testing":
        return import_module("modelscope_cli.testing")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    functions = f", which has {', '.join(_HOMES)}; help({__name__}.summary) explains one"
    raise AttributeError(f"no '{name}' in {__name__}{functions * (not name.startswith('_'))}")


def __dir__() -> list[str]:
    return __all__
