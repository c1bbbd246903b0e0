"""See what happens inside a PyTorch vision model.

>>> import modelscope_cli as mscope
>>> mscope.summary("resnet34")

The names below are loaded when they are first used, so that importing the package costs nothing.
"""

TYPE_CHECKING = False  # type checkers know this name; importing `typing` would double the start-up time
__version__ = "0.2.0"
__all__ = [
    "__version__",
    "ablate",
    "check",
    "check_images",
    "demo",
    "diff",
    "doctor",
    "explain",
    "featuremaps",
    "grads",
    "hook",
    "list_models",
    "list_rules",
    "load",
    "lrfind",
    "make_report",
    "observe",
    "predict",
    "read",
    "scan",
    "schema",
    "stats",
    "summary",
    "testing",
    "train",
    "watch",
    "weights",
]

if TYPE_CHECKING:
    from modelscope_cli import testing
    from modelscope_cli.analysis.ablation.ablate import ablate
    from modelscope_cli.analysis.activations.featuremaps import featuremaps
    from modelscope_cli.analysis.activations.stats import observe, stats
    from modelscope_cli.analysis.comparison.diff import diff
    from modelscope_cli.analysis.dataset.check_images import check_images
    from modelscope_cli.analysis.explaining.explain import explain
    from modelscope_cli.analysis.gradients.grads import grads
    from modelscope_cli.analysis.health.check import check
    from modelscope_cli.analysis.interventions import hook
    from modelscope_cli.analysis.load import load
    from modelscope_cli.analysis.predictions.predict import predict
    from modelscope_cli.analysis.predictions.preprocessing_check import doctor
    from modelscope_cli.analysis.summary.summary import summary
    from modelscope_cli.analysis.weights.weights import scan, weights
    from modelscope_cli.examples import demo
    from modelscope_cli.models.catalogue import list_models
    from modelscope_cli.records.documents import schema
    from modelscope_cli.records.reading import read
    from modelscope_cli.reporting import make_report
    from modelscope_cli.rules.registry import list_rules
    from modelscope_cli.training.lrfind import lrfind
    from modelscope_cli.training.train import train
    from modelscope_cli.watching.watch import watch


# The module of every function; the imports above say the same to type checkers.
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


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "testing":
        return import_module("modelscope_cli.testing")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
