"""The plug-in of pytest: `--modelscope`, `modelscope_session` and `model_snapshot`.

Every run of pytest on the machine imports this file, so it imports neither torch nor the rest of the package.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

_HELP = "report side effects of tests on modules: leftover hooks, changed modes, NaN, missing gradients"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("modelscope")
    group.addoption("--modelscope", action="store_true", help=_HELP)
    more = "the same, and exit with 1 if there is something to report"
    group.addoption("--modelscope-error", action="store_true", help=more)
    group.addoption("--modelscope-update", action="store_true", help="write the files of model_snapshot")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("modelscope") or config.getoption("modelscope_error"):
        config.pluginmanager.register(_Watching(config), "modelscope-watching")
        # A compiled module is then called once more, which the plug-in does not count.
        config.addinivalue_line(
            "filterwarnings", "ignore:Using .torch.compile.module.. when there are global hooks"
        )


class _Watching:
    """Looks at the modules of a suite, in this process or, of xdist, in each worker."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._watch: Any = None
        # As that of `ModuleWatch`, and `unseen`: the tests in which torch was first imported
        self.seen: defaultdict[str, dict[tuple[str, ...], None]] = defaultdict(dict)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if "torch" not in sys.modules:  # do not import it for a suite that never does
            result = yield
            if "torch" in sys.modules:
                self.seen["unseen"][(item.nodeid,)] = None
            return result
        if self._watch is None:
            from modelscope_cli.hooks.module_watch import ModuleWatch

            self._watch = ModuleWatch()
        self._watch.begin(item.nodeid)
        try:
            return (yield)
        finally:
            self._watch.end()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if self._watch is not None:
            self._watch.call_begins()
        return (yield)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self._add(self._watch.seen if self._watch is not None else {})
        worker = getattr(self._config, "workeroutput", None)
        if worker is not None:
            worker["modelscope"] = json.dumps({kind: list(rows) for kind, rows in self.seen.items()})
            return
        self._add({"marks": conclude(self.seen["facts"])})
        if (
            self.seen["marks"]
            and self._config.getoption("modelscope_error")
            and exitstatus == pytest.ExitCode.OK
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._add(json.loads(getattr(node, "workeroutput", {}).get("modelscope", "{}")))

    def _add(self, seen: dict[str, Any]) -> None:
        for kind, rows in seen.items():
            self.seen[kind].update((tuple(row), None) for row in rows)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("modelscope")
        for test, text in self.seen["marks"]:
            terminalreporter.line(f"{test}: {text}")
        n, marks = len(self.seen["tests"]), len(self.seen["marks"])
        line = f"{n} test{'s' * (n != 1)} ran a module" + f"; {marks} finding{'s' * (marks != 1)}" * bool(n)
        if unseen := ", ".join(test for (test,) in self.seen["unseen"]):
            line += f"; not checked: {unseen}, which imported torch first"
        terminalreporter.line(line)


def conclude(facts: Iterable[tuple[str, ...]]) -> list[tuple[str, str]]:
    """Return which parameters of a class of models no test gave a gradient, or changed: the first test, and a text.

    Args:
        facts: class, kind and name. Kinds: `called`, modules that ran; `backward`, tests in which a gradient came
            back; `asked` and `got`, parameters that required and had one; `steps`, tests in which an optimizer
            stepped; `stood` and `moved`, parameters with a gradient that a step left as they were, and changed.
    """
    classes: dict[str, dict[str, set[str]]] = {}
    for name, kind, value in facts:
        classes.setdefault(name, defaultdict(set))[kind].add(value)
    marks = []
    for name, seen in classes.items():
        missing = sorted(seen["asked"] - seen["got"])
        without = [label for label in missing if label.rpartition(".")[0] in {*seen["called"], ""}]
        unmoved = sorted(seen["stood"] - seen["moved"])
        model = name.rpartition(".")[2]
        for labels, tests, fact, during in (
            (without, seen["backward"], "no gradient", "with a backward pass"),
            (unmoved, seen["steps"], "a gradient, but the same value after each step", "with an optimizer"),
        ):
            if labels:
                names = ", ".join(labels[:3]) + f" and {len(labels) - 3} more" * (len(labels) > 3)
                n = f"{len(tests)} test{'s' * (len(tests) != 1)}"
                marks.append((min(tests), f"{model}: {fact} in {n} {during}: {names}"))
    return marks


@pytest.fixture
def modelscope_session() -> Iterator[Callable[..., Any]]:
    """Attach hooks to a model, as `modelscope_cli.hook` takes them, until the end of the test.

    Call it with a model and hooks, `modelscope_session(model, "zero@layer3")`; it returns what reports on them.
    """
    import modelscope_cli as ms

    with ExitStack() as stack:
        yield lambda model, *hooks, **keywords: stack.enter_context(ms.hook(model, *hooks, **keywords))


@pytest.fixture
def model_snapshot(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare a model with a file in `__snapshots__` next to the test, which `--modelscope-update` writes.

    Call it with a model and inputs: the statistics of all layers are compared as `modelscope diff` compares
    two documents. With `values=False` only names, types, shapes and numbers of parameters are.
    """
    import modelscope_cli as ms

    option = request.config.getoption
    is_update = option("modelscope_update") or option("update_snapshots", False)  # the second is of syrupy
    name = re.sub(r"[^\w.-]+", "_", request.node.name)
    numbers = iter(range(1, sys.maxsize))

    def check(model: Any, inputs: Any = None, *, values: bool = True, **keywords: Any) -> None:
        __tracebackhide__ = True
        folder = request.path.parent / "__snapshots__" / request.path.stem
        file = folder / f"{name}.{next(numbers)}.json"
        if is_update:
            folder.mkdir(parents=True, exist_ok=True)
        elif not file.is_file():
            pytest.fail(f"there is no snapshot {file}: pytest --modelscope-update writes it", pytrace=False)
        if values and is_update:
            ms.stats(model, inputs, **keywords).save(file)
        elif values:
            ms.testing.assert_same(file, ms.stats(model, inputs, **keywords))
        else:
            layers = [(f"{one.name}#{one.call}", one) for one in ms.summary(model, inputs, **keywords).layers]
            rows = [f"{name} {one.type} {one.output_shapes} {one.params}" for name, one in layers]
            if is_update:
                file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            assert rows == json.loads(file.read_text(encoding="utf-8"))

    return check
