"""`pytest --modelscope` and its fixtures, each in a suite of its own."""

import json
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli import pytest_plugin
from modelscope_cli.hooks import module_watch  # noqa: F401  (the same)

pytest_plugins = ["pytester"]

HEAD = """
    import pytest, torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.idle = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.a(x)

    class Healthy(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)  # never calls its out_proj
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.read = nn.Linear(4, 4)  # its weight is used, but it is not called
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            x = self.attention(x, x, x)[0].mean(1)
            return self.norm(self.experts[1](nn.functional.linear(x, self.read.weight)))
"""


@pytest.fixture(scope="module", autouse=True)
def _everything_is_imported(tmp_path_factory):
    """Import what the suites need: pytester forgets what a suite imported, and triton cannot be imported twice."""
    model, x = nn.Sequential(nn.Linear(4, 2)), torch.ones(2, 4)
    file = tmp_path_factory.mktemp("warm") / "print.json"
    torch.optim.SGD(model.parameters(), 0.1).step()
    ms.stats(model, x).save(file)
    ms.testing.assert_same(file, ms.stats(model, x))
    ms.summary(model, x)
    torch.func.vmap(model)(x)
    torch.compile(model, backend="eager")(x)
    with ms.hook(model, ("forward", "0", lambda module, args, output: output)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(model, x)


@pytest.fixture
def run(pytester, monkeypatch):
    """Run a suite with the plug-in; the rest of what is installed stays out."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(body, *options, head=HEAD, process=False):
        pytester.makepyfile(test_suite=head + body)
        start = pytester.runpytest_subprocess if process else pytester.runpytest_inprocess
        return start("-p", "modelscope_cli.pytest_plugin", "-p", "no:cacheprovider", "-W", "ignore", *options)

    return run


def findings(result):
    """Return the lines of the section, without the last, and the last."""
    lines = result.outlines
    begin = next(n for n, line in enumerate(lines) if line.strip("= ") == "modelscope")
    end = next(n for n, line in enumerate(lines) if n > begin and line.startswith("="))
    *found, last = filter(None, lines[begin + 1 : end])
    return [line.removeprefix("test_suite.py::") for line in found], last


def test_nothing_is_imported_when_not_asked_for():
    code = (
        "import sys, pytest; before = set(sys.modules); import modelscope_cli.pytest_plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [name for name in out if not name.startswith("modelscope_cli")] == [
        name for name in out if name.partition(".")[0] in sys.stdlib_module_names
    ]
    assert {name for name in out if name.startswith("modelscope_cli")} == {
        "modelscope_cli",
        "modelscope_cli.pytest_plugin",
    }


def test_a_suite_without_torch_does_not_import_it(run):
    body = """
    def test_plain():
        import sys
        assert "torch" not in sys.modules
    """
    result = run(body, "--modelscope", head="", process=True)
    result.assert_outcomes(passed=1)
    assert findings(result) == ([], "0 tests ran a module")


def test_sick_tests_are_marked(run):
    result = run(
        """
    @pytest.fixture(scope="module")
    def net():
        return Net().eval()

    def test_leaks(net):
        net.a.register_forward_hook(lambda *args: None)
        net(torch.ones(1, 4))

    def test_changes_the_mode(net):
        net.train()
        net(torch.ones(1, 4))

    def test_after_both(net):
        net(torch.ones(1, 4)).sum().backward()

    class Divides(nn.Module):
        def forward(self, x):
            return x / 0

    def test_inf():
        Divides()(torch.ones(1, 4))

    def test_poisoned():
        net = Net()
        net.a.bias.data.fill_(float("inf"))
        net(torch.ones(1, 4))
    """,
        "--modelscope",
    )
    result.assert_outcomes(passed=5)
    assert result.ret == 0
    found, last = findings(result)
    assert found == [
        "test_leaks: leaves a hook on a of Net; test_changes_the_mode ran it so",
        "test_changes_the_mode: leaves Net in train mode, unlike before; test_after_both ran it so",
        "test_inf: inf in the output of Divides; its inputs and parameters are finite",
        "test_poisoned: inf in the output of Net; its parameters hold inf",
    ]
    assert last == "5 tests ran a module; 4 findings"


def test_a_gradient_that_never_comes(run):
    result = run(
        """
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(self.a(x).detach())

    def test_training():
        net = Cut()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(2):
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """,
        "--modelscope-error",
    )
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert findings(result)[0] == [
        "test_training: Cut: no gradient in 1 test with a backward pass: a.bias, a.weight"
    ]


def test_parameters_that_no_step_changes(run):
    result = run(
        """
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(self.a(x))

    class Forgotten(Two): pass
    class Rounded(Two): pass
    class InTurn(Two): pass
    class WarmUp(Two): pass
    class Frozen(Two): pass

    def train(net, parameters, lr=0.1):
        optimizer = torch.optim.SGD(parameters, lr)
        for _ in range(2):
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def test_forgotten():
        net = Forgotten()
        train(net, net.a.parameters())

    def test_rounded():
        net = Rounded()
        with torch.no_grad():
            for value in net.parameters():
                value.fill_(1.0)
        train(net, net.parameters(), lr=1e-12)

    def test_in_turn():
        net = InTurn()
        train(net, net.a.parameters())
        train(net, net.b.parameters())

    def test_warm_up():
        net = WarmUp()
        train(net, [{"params": net.a.parameters()}, {"params": net.b.parameters(), "lr": 0.0}])

    def test_frozen():
        net = Frozen()
        net.a.requires_grad_(False)
        train(net, net.parameters())
    """,
        "--modelscope",
    )
    result.assert_outcomes(passed=5)
    text = "a gradient, but the same value after each step in 1 test with an optimizer"
    assert findings(result)[0] == [
        f"test_forgotten: Forgotten: {text}: b.bias, b.weight",
        f"test_rounded: Rounded: {text}: a.bias, a.weight, b.bias and 1 more",
    ]


def test_healthy_tests_are_not_marked(run):
    result = run(
        """
    @pytest.fixture(scope="module")
    def shared():
        return Healthy()

    @pytest.fixture
    def hooked(shared):
        handle = shared.register_forward_hook(lambda *args: None)
        yield shared
        handle.remove()

    def test_trains(hooked):
        hooked.train()
        hooked(torch.randn(2, 3, 4)).sum().backward()
        hooked.eval()

    def test_restores(shared):
        with torch.no_grad():
            was = shared.training
            shared.train()
            shared(torch.randn(2, 3, 4))
            shared.train(was)

    def test_again(shared):
        shared(torch.randn(2, 3, 4))

    def test_a_model_that_dies_with_its_test():
        net = Healthy()
        net.register_forward_hook(lambda *args: None)
        net.eval()(torch.randn(2, 3, 4))

    def test_nan_is_given_and_masks_hold_minus_infinity():
        nn.ReLU()(torch.full((2,), float("nan")))
        nn.Threshold(2.0, float("-inf"))(torch.ones(2))

    def test_what_has_no_values():
        with torch.device("meta"):
            net = Net()
        with torch.no_grad():
            net(torch.ones(1, 4, device="meta"))
        traced = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
        traced(torch.ones(1, 2))
        torch.func.vmap(nn.Linear(2, 2))(torch.ones(3, 2))
        with pytest.raises(RuntimeError):
            nn.Linear(2, 2)(torch.ones(3))
        nn.Linear(2, 2)(torch.ones(2))
    """,
        "--modelscope-error",
    )
    result.assert_outcomes(passed=6)
    assert findings(result)[0] == []
    assert result.ret == 0
    assert not torch.nn.modules.module._global_forward_hooks


def test_compiled_modules_run_as_without_the_plug_in(run):
    result = run(
        """
    @pytest.mark.parametrize("fullgraph", [True, False])
    def test_compiled(fullgraph):
        net = torch.compile(Net(), backend="eager", fullgraph=fullgraph)
        for _ in range(2):
            net(torch.ones(2, 4)).sum().backward()
    """,
        "--modelscope",
    )
    result.assert_outcomes(passed=2)
    assert findings(result) == ([], "2 tests ran a module; 0 findings")


def test_what_several_workers_saw_is_put_together():
    plugin = pytest_plugin._Watching(SimpleNamespace(getoption=lambda name: True))
    facts = {"n.Net": {"called": ["a", "b"], "backward": ["t1"], "asked": ["a.weight", "b.weight"]}}
    for n, got in enumerate(("a.weight", None)):
        rows = [("n.Net", kind, name) for kind, names in facts["n.Net"].items() for name in names]
        rows += [("n.Net", "got", got)] if got else []
        seen = {"marks": [["t0", "leaves"]], "tests": [[f"t{n}"], ["t1"]], "facts": rows, "unseen": []}
        plugin.pytest_testnodedown(SimpleNamespace(workeroutput={"modelscope": json.dumps(seen)}), None)
    session = SimpleNamespace(exitstatus=0)
    plugin.pytest_sessionfinish(session, pytest.ExitCode.OK)
    assert session.exitstatus == pytest.ExitCode.TESTS_FAILED
    assert [*plugin.seen["tests"]] == [("t0",), ("t1",)]
    assert [*plugin.seen["marks"]] == [
        ("t0", "leaves"),
        ("t1", "Net: no gradient in 1 test with a backward pass: b.weight"),
    ]


SNAPSHOT = """
    import torch
    from torch import nn

    def model(width=3):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    def test_values(model_snapshot):
        net = model()
        model_snapshot(net, torch.ones(2, 4))

    def test_shapes(model_snapshot):
        model_snapshot(model(WIDTH), torch.ones(2, 4), values=False)

    WIDTH = 3
"""


def test_a_snapshot_is_written_once_and_compared(run, pytester):
    result = run("", head=SNAPSHOT)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["*there is no snapshot *test_values.1.json: pytest --modelscope-update writes it*"]
    )
    run("", "--modelscope-update", head=SNAPSHOT).assert_outcomes(passed=2)
    files = sorted(file.name for file in (pytester.path / "__snapshots__" / "test_suite").iterdir())
    assert files == ["test_shapes.1.json", "test_values.1.json"]
    run("", head=SNAPSHOT).assert_outcomes(passed=2)
    sick = SNAPSHOT.replace("net = model()", "net = model(); net[2].bias.data[0] += 1").replace(
        "WIDTH = 3", "WIDTH = 5"
    )
    result = run("", head=sick)
    result.assert_outcomes(failed=2)
    assert "AssertionError" in result.stdout.str()
