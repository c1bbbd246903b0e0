"""`with ms.hook(...)`: the hooks of `--hook` around a forward and backward of the caller's own."""

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError


class Small(nn.Module):
    """A ReLU that runs twice, a shortcut, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU()
        self.head = nn.Linear(4 * 36, 5)

    def forward(self, x):
        x = self.relu(self.conv1(x))
        return self.head(self.relu(self.conv2(x) + x).flatten(1))


X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Small()


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def run(model, x=X):
    """Run forward and backward; return the output and the gradients."""
    model.zero_grad()
    output = model(x)
    output.square().sum().backward()
    return output.detach(), gradients(model)


def forget(model):
    """Drop the gradients, which are the caller's."""
    model.zero_grad()


def test_forward(model):
    with ms.hook(model, "zero@relu") as h:
        output, _ = run(model)
    torch.testing.assert_close(output, model.head.bias.detach().expand(2, -1))
    (report,) = h.reports
    assert (report.spec, report.fired, report.layers) == ("zero@relu", 2, ("relu",))
    assert not h.warnings


def test_pre(model):
    expected, _ = run(model, X + 2)
    with ms.hook(model, "pre:add=2@conv1"):
        output, _ = run(model)
    torch.testing.assert_close(output, expected)


def test_grad(model):
    handle = model.conv2.register_forward_hook(lambda m, a, o: o.register_hook(lambda g: 3 * g) and None)
    _, expected = run(model)
    handle.remove()
    with ms.hook(model, "grad:scale=3@conv2") as h:
        _, got = run(model)
    torch.testing.assert_close(got, expected)
    assert h.reports[0].fired == 1


def double(module, args, output):
    return 2 * output


@pytest.mark.parametrize(("hook", "same"), [
    (("forward", "conv", double), "scale=2@conv"),
    (("pre", "conv1", lambda module, args: (args[0] + 2,)), "pre:add=2@conv1"),
    (("grad", "conv2", lambda grad: 3 * grad), "grad:scale=3@conv2"),
], ids=lambda hook: str(hook[0]) if isinstance(hook, tuple) else "")  # fmt: skip
def test_a_function_does_what_an_action_does(model, hook, same):
    with ms.hook(model, same) as expected:
        output, grads = run(model)
    with ms.hook(model, hook) as h:
        got, got_grads = run(model)
    torch.testing.assert_close((got, got_grads), (output, grads))
    assert [report.fired for report in h.reports] == [report.fired for report in expected.reports]
    assert h.reports[0].kind == hook[0]


@pytest.mark.parametrize("hooks", [
    ["zero@conv1", "grad:zero@relu", "pre:zero@head"],
    [("forward", "conv", double), ("grad", "conv", lambda grad: grad)],
], ids=["texts", "functions"])  # fmt: skip
@pytest.mark.parametrize("ends", ["well", "raises", "interrupted"])
def test_the_model_is_left_as_it_was(model, unchanged, hooks, ends):
    before, gradients_before = run(model)
    forget(model)
    check = unchanged(model)
    error = {"raises": ValueError, "interrupted": KeyboardInterrupt}.get(ends)
    try:
        with ms.hook(model, *hooks):
            run(model)
            if error:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass
    forget(model)
    check()
    after = run(model)
    torch.testing.assert_close(after, (before, gradients_before))


def test_a_backward_after_the_block_is_not_hooked(model):
    _, expected = run(model)
    forget(model)
    with ms.hook(model, "grad:zero@relu", "grad:zero@conv2") as h:
        output = model(X)
    output.square().sum().backward()
    torch.testing.assert_close(gradients(model), expected)
    assert [report.fired for report in h.reports] == [0, 0]
    assert len(h.warnings) == 2


def test_two_forwards_can_share_a_backward(model):
    with ms.hook(model, "grad:zero@conv2") as h:
        (model(X) + model(2 * X)).sum().backward()
    assert not model.conv2.weight.grad.any()
    assert h.reports[0].fired == 2


def test_training_goes_on(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.conv1.weight.detach().clone()
    with ms.hook(model, ("forward", "head", lambda module, args, output: output * 2)):
        run(model)
        optimizer.step()
    assert not torch.equal(before, model.conv1.weight)


def test_mode_and_fast_path_are_the_callers(model):
    model.train()
    with ms.hook(model, "print@conv1", say=lambda line: None):
        assert model.training
        assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("pattern", ["relu#1", "relu@2", "relu@-1"])
def test_positions_need_example_inputs(model, pattern):
    with pytest.raises(UsageError, match="not known yet") as caught, ms.hook(model, f"zero@{pattern}"):
        pass
    assert "args=" in caught.value.hint
    with ms.hook(model, f"zero@{pattern}", args=X) as h:
        output, _ = run(model)
    torch.testing.assert_close(output, model.head.bias.detach().expand(2, -1))
    assert h.reports[0].layers == ("relu#1",)
    assert h.reports[0].fired == 1


def test_lines_of_print_go_where_they_should(model, capsys):
    lines = []
    with ms.hook(model, "print@conv1", say=lines.append):
        model(X)
    assert capsys.readouterr() == ("", "")
    with ms.hook(model, "print@conv1"):
        model(X)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == lines
    assert lines[0].startswith("print conv1: ")


def test_save_writes_when_the_block_ends_well(model, tmp_path):
    from safetensors.torch import load_file

    file = tmp_path / "maps.safetensors"
    with pytest.raises(RuntimeError), ms.hook(model, f"save={file}@conv1"):
        model(X[:, :, :3])  # the head takes no such thing
    assert not file.exists()
    with ms.hook(model, f"save={file}@conv1") as h:
        model(X)
    torch.testing.assert_close(load_file(file)["conv1"], model.conv1(X).detach())
    assert h.reports[0].file == str(file)


def test_what_a_hook_finds_leaves_the_block_as_itself(model):
    with pytest.raises(CannotRunError, match="conv1"), ms.hook(model, "raise-on-nan@conv1"):
        model(X * torch.nan)
    with pytest.raises(ZeroDivisionError), ms.hook(model, ("forward", "conv1", lambda m, a, o: 1 / 0)):
        model(X)


@pytest.mark.parametrize("bad", [
    "zero@nosuchlayer",
    "nosuchaction@conv1",
    ("forward", "nosuchlayer", double),
    ("forwards", "conv1", double),
    ("grad", "conv1", double),  # takes three arguments, not one
    ("forward", "conv1"),
    ("forward", "conv1", "text"),
    "call=nosuchfile.py:fn@conv1",
], ids=lambda bad: bad if isinstance(bad, str) else "-".join(map(str, bad[:2])))  # fmt: skip
def test_nonsense_is_refused_before_anything_runs(model, unchanged, bad):
    check = unchanged(model)
    with pytest.raises((UsageError, CannotRunError)) as caught, ms.hook(model, bad):
        pytest.fail("the block ran")
    assert caught.value.hint
    check()


def test_a_loaded_model_is_taken_as_well():
    loaded = ms.load("squeezenet1_1", weights="none")
    with ms.hook(loaded, "zero@classifier.1") as h, torch.no_grad():
        assert not loaded.module(torch.ones(1, 3, 64, 64)).any()
    assert h.reports[0].changed_fraction > 0


def test_observe_and_load_take_the_words_of_the_command_line(model):
    with ms.observe(model, layer="conv") as seen:
        assert "has run" in seen.record().run.warnings[0].message
        model(X)
    assert [row.name for row in seen.record().layers] == ["conv1", "conv2"]
    assert not seen.record().run.warnings
    assert ms.load(model).module is model
    with pytest.raises(UsageError, match="weights"):
        ms.load(model, weights="none")
