"""The plug-in of pytest: `--modelscope`, `modelscope_session` and `model_snapshot`.

Every run of pytest on the machine imports this file, so it imports neither torch nor the rest of the package.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

_HELP = "report what tests do to the modules that they run: hooks that stay, changed modes, NaN, idle layers"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("modelscope")
    group.addoption("--modelscope", action="store_true", help=_HELP)
    group.addoption(
        "--modelscope-error",
        action="store_true",
        help="the same, and exit with 1 if there is something to report",
    )
    group.addoption("--modelscope-update", action="store_true", help="write the files of model_snapshot")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("modelscope") or config.getoption("modelscope_error"):
        config.pluginmanager.register(_Watching(config), "modelscope-watching")


class _Watching:
    """Looks at the modules of a suite, in this process or, of xdist, in each worker.

    Attributes:
        marks: test, and what it did. `facts`: by class of models, sets of names; see `conclude`.
        tests: those that ran a module. `unseen`: those in which torch was first imported.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._watch: Any = None
        self.marks: list[tuple[str, str]] = []
        self.facts: dict[str, dict[str, set[str]]] = {}
        self.tests: set[str] = set()
        self.unseen: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if "torch" not in sys.modules:  # do not import it for a suite that never does
            result = yield
            if "torch" in sys.modules:
                self.unseen.append(item.nodeid)
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
        if self._watch is not None:
            facts = _listed(self._watch.facts)
            self._add({"marks": self._watch.marks, "facts": facts, "tests": sorted(self._watch.tests)})
        worker = getattr(self._config, "workeroutput", None)
        if worker is not None:
            facts = _listed(self.facts)
            worker["modelscope"] = json.dumps(
                {"marks": self.marks, "facts": facts, "tests": sorted(self.tests), "unseen": self.unseen}
            )
            return
        self.marks += conclude(self.facts)
        if self.marks and self._config.getoption("modelscope_error") and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take over what a worker of xdist saw."""
        self._add(json.loads(getattr(node, "workeroutput", {}).get("modelscope", "{}")))

    def _add(self, seen: dict[str, Any]) -> None:
        self.marks += [(test, text) for test, text in seen.get("marks", ())]
        self.tests |= set(seen.get("tests", ()))
        self.unseen += seen.get("unseen", ())
        for name, one in seen.get("facts", {}).items():
            for key, names in one.items():
                self.facts.setdefault(name, {}).setdefault(key, set()).update(names)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("modelscope")
        for test, text in self.marks:
            terminalreporter.line(f"{test}: {text}")
        n, marks = len(self.tests), len(self.marks)
        ran = f"{n} test{'s' * (n != 1)} ran a module"
        found = f"{marks} finding{'s' * (marks != 1)}" if n else ""
        unseen = f"not looked at: {', '.join(self.unseen)}, which imported torch first" if self.unseen else ""
        terminalreporter.line("; ".join(filter(None, [ran, found, unseen])))


def _listed(facts: Any) -> dict[str, dict[str, list[str]]]:
    return {name: {key: sorted(names) for key, names in one.items()} for name, one in facts.items()}


def conclude(facts: dict[str, dict[str, set[str]]]) -> list[tuple[str, str]]:
    """Return what holds in all tests of a class of models: a test, and what was never seen.

    Args:
        facts: of each class `runs`, the tests whose graph was followed; `modules` that were not called in one of
            them, and `called`; `used`: parameters in a graph; `backward`: tests in which a gradient came back,
            `asked` and `got`: parameters that required and had one.
    """
    marks = []
    for name, sets in facts.items():
        model, seen = name.rpartition(".")[2], defaultdict(set, sets)
        read = seen["used"] | seen["got"]
        idle = [
            module
            for module in sorted(seen["modules"] - seen["called"])
            if not any(label.startswith(f"{module}.") for label in read)
            and not _has_busy_sibling(module, seen["called"])
        ]
        without = [
            label
            for label in sorted(seen["asked"] - seen["got"])
            if label.rpartition(".")[0] in {*seen["called"], ""}
        ]
        tests = min(seen["runs"], default=""), min(seen["backward"], default="")
        if idle:
            marks.append((tests[0], f"{model}: never called in any test: {_some(idle)}"))
        if without:
            n = len(seen["backward"])
            during = f"{n} test{'s' * (n != 1)} with a backward pass"
            marks.append((tests[1], f"{model}: no gradient in {during}: {_some(without)}"))
    return marks


def _has_busy_sibling(module: str, called: set[str]) -> bool:
    """Tell whether it is one of a list of which others are called, as are experts and heads."""
    pattern = re.compile(re.sub(r"(?<![^.])\d+(?![^.])", r"\\d+", re.escape(module).replace(r"\.", ".")))
    return any(pattern.fullmatch(other) for other in called)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


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

    Call it with a model and inputs: the outputs of all layers are compared as `modelscope diff` compares a
    fingerprint. With `values=False` only names, types, shapes and numbers of parameters are.
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
            ms.stats(model, inputs, fingerprint=file, force=True, **keywords)
        elif values:
            ms.testing.assert_same(file, model, inputs, **keywords)
        else:
            layers = ms.summary(model, inputs, **keywords).layers
            rows = [
                f"{one.name or one.type}#{one.call} {one.type} {one.output_shapes} {one.params}"
                for one in layers
            ]
            if is_update:
                file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            assert rows == json.loads(file.read_text(encoding="utf-8"))

    return check
