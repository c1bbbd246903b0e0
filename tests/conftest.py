"""Settings for the whole suite, and seeing everything about a model that a command might change."""

import gc
import math
import os
import signal
import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from modelscope_cli.shell import live

if TYPE_CHECKING:
    from torch import Tensor, nn

hypothesis.settings.register_profile("any machine", deadline=None)  # no test depends on how fast it is
hypothesis.settings.load_profile("any machine")

# Several workers that each use every core spend their time waiting for one another. Before torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


os.environ.setdefault("MSCOPE_CACHE", "0")  # what a test finds is what it made
os.environ.pop("CI", None)  # set by CI hosts and by pre-commit: tables would be printed in pipes
os.environ.pop("PRE_COMMIT", None)
live.Pace.FIRST_S = math.inf  # what is written depends on no clock

# Each of many processes would compile all of the package again, and every run all of the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Rewrite the files of tests/golden.")
    told = "The device of tests/devices: cuda, mps, ...; a stand-in by default."
    parser.addoption("--accelerator", default="stand", help=told)


def pytest_configure() -> None:
    """Let Ctrl-C work in what the tests start: a shell that runs us in the background has it ignored, for all."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `watch` look into all steps that are due in this process, however busy the machine is."""
    monkeypatch.setattr("modelscope_cli.watching.schedule._ALLOWANCE_S", math.inf)


@pytest.fixture(autouse=True)
def _nothing_is_compiled() -> None:
    """Forget what another test compiled: `watch` would not look between the layers of this process."""
    from modelscope_cli.hooks.torch_private import has_compiled

    if has_compiled():
        sys.modules["torch"]._dynamo.reset()


gc.disable()  # until all is imported: most of that stays


def pytest_collection_finish() -> None:
    """Leave what is imported by now to itself: `watch` looks through all objects there are, and so does `gc`."""
    gc.freeze()
    gc.enable()
    sys.dont_write_bytecode = True  # what tests run here leaves nothing beside it


def pytest_sessionfinish() -> None:
    gc.unfreeze()


# These take longest, so they begin: no worker is left alone with one of them at the end.
LONGEST = ("docs/test_examples.py", "hints/test_every_hint.py", "docs/test_documents_run.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a worker whole files: what the tests of a file have in common is made once, and not by every worker."""
    from xdist.scheduler import LoadFileScheduling

    if config.option.dist != "load":
        return None
    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Begin with the longest files; mark as numeric the tests of every module that uses `tolerance`."""
    items.sort(key=lambda item: not str(item.path).endswith(LONGEST))
    for item in items:
        used = (value for value in vars(item.module).values() if isinstance(value, FunctionType))
        if any(function.__module__ == "tolerance" for function in used):
            item.add_marker("numeric")


def picture(model: "nn.Module") -> dict[str, Any]:
    """Describe a model and torch's own state so that two pictures can be compared with `==`.

    Tensors stand as identity and values, containers as their entries in order.
    """
    import torch

    seen: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            seen[f"{name}.{key}"] = (id(value), _plain(value))
        seen[f"{name}.training"] = module.training
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        values = None if tensor.is_meta else hash(tensor.detach().numpy().tobytes())
        n_hooks = len(tensor._backward_hooks or ())
        seen[name] = (id(tensor), tensor.requires_grad, id(tensor.grad), n_hooks, values)
    seen["fastpath"] = torch.backends.mha.get_fastpath_enabled()
    seen["random"] = torch.get_rng_state().tolist()
    return seen


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, id(item)) for key, item in value.items()]
    if isinstance(value, (list, set)):
        return [id(item) for item in value]
    return None


@pytest.fixture
def unchanged() -> Callable[["nn.Module"], Callable[[], None]]:
    """Return a function that takes a model's picture, and gives a check that it still looks the same."""

    def take(model: "nn.Module") -> Callable[[], None]:
        before = picture(model)

        def check() -> None:
            after = picture(model)
            assert before.keys() == after.keys()
            assert {key for key in before if before[key] != after[key]} == set()

        return check

    return take


@pytest.fixture
def quick_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill weights from one block of noise, where it decides nothing what they are: to draw them takes seconds."""
    import torch

    uniform = torch.rand(1 << 20, generator=torch.Generator().manual_seed(0))
    normal = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))

    def fill(x: "Tensor", values: "Tensor") -> "Tensor":
        for part in x.detach().view(-1).split(len(values)):
            part.copy_(values[: len(part)])
        return x

    def fill_uniform(x: "Tensor", low: float = 0, high: float = 1, generator: Any = None) -> "Tensor":
        return fill(x, uniform * (high - low) + low)

    def fill_normal(x: "Tensor", mean: float = 0, std: float = 1, *_: Any, **__: Any) -> "Tensor":
        return fill(x, normal * std + mean)

    monkeypatch.setattr(torch.Tensor, "uniform_", fill_uniform)
    monkeypatch.setattr(torch.Tensor, "normal_", fill_normal)
    monkeypatch.setattr(torch.nn.init, "trunc_normal_", fill_normal)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing on the figures of a command, whose files are empty ones, and put no picture into a page.

    For tests that look at something else. `cli/test_hostile_text.py` and the README's commands draw what all write.
    """
    from undrawn import Undrawn

    no_picture = ("data:image/png;base64,", 1, 1)
    monkeypatch.setattr("modelscope_cli.report.page.images._encoded", lambda *how: no_picture)
    monkeypatch.setattr("matplotlib.figure.Figure", Undrawn)
    monkeypatch.setattr("modelscope_cli.report.canvas._use_plain_words", lambda figure: None)
