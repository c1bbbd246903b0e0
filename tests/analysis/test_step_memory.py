"""The memory of a training step, against what autograd keeps and what torch's own tracker counts in a real one."""

import re

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.utils.checkpoint import checkpoint

import modelscope_cli as ms
from modelscope_cli.analysis.summary.memory import StepOptions, forward_peak, run_step
from modelscope_cli.analysis.summary.training_steps import TrainingSteps
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.report.summary.table import training_facts


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 5)

    def forward(self, x):
        q, k, v = self.qkv(x.flatten(2).transpose(1, 2).repeat(1, 1, 16)).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0].mean(1))


class Encoder(nn.Module):
    """Attention by `nn.MultiheadAttention`, whose kernel torch chooses by the device."""

    def __init__(self, **keywords):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(12, 2, 16, batch_first=True, **keywords)

    def forward(self, x):
        return self.layer(x[:, 0]).mean((1, 2))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.relu_(self.a(x.mean((1, 2))[:, :8])))


class Checkpointed(nn.Module):
    def __init__(self, is_reentrant):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 4, 3), nn.Sigmoid())
        self.is_reentrant = is_reentrant

    def forward(self, x):
        return checkpoint(self.block, self.conv(x), use_reentrant=self.is_reentrant).mean((2, 3))


class Decides(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        x = self.fc(x.mean((1, 2))[:, :8])
        return self.fc(x) if float(x.detach().sum()) > -1e9 else x


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)

    def forward(self, x):
        return Square.apply(self.conv(x)).mean((2, 3))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(12, 7, batch_first=True), nn.Linear(7, 3)

    def forward(self, x):
        return self.fc(self.lstm(x[:, 0])[0][:, -1])


def frozen():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3))
    model[0].requires_grad_(False)
    return model


def plain():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(4, 4, 3)
    )


MODELS = {
    **{"attention": Attention, "tied": Tied, "decides by values": Decides, "custom": Custom, "lstm": Recurrent},
    **{"encoder": Encoder, "encoder without dropout": lambda: Encoder(dropout=0.0)},
    **{"frozen": frozen, "plain": plain, "squeezenet": torchvision.models.squeezenet1_1},
    **{f"reentrant {one}": (lambda one=one: Checkpointed(one)) for one in (False, True)},
}  # fmt: skip


def build(name):
    torch.manual_seed(0)
    shape = (2, 3, 48, 48) if name == "squeezenet" else (2, 1, 12, 12)
    return MODELS[name](), torch.randn(*shape)


def saved_by_hand(model, x):
    """Return the bytes of the distinct storages that a real forward keeps, without weights."""
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage  # kept alive, so that no other gets its address
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(x)
    assert output.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


def steps_of(model, x, **options):
    return TrainingSteps(model, (x,), StepOptions(**options), lambda reason: (model, (x,)))


@pytest.mark.parametrize("name", MODELS)
def test_saved_is_what_autograd_keeps_to_the_byte(name):
    model, x = build(name)
    x.requires_grad_(name == "reentrant True")  # else the reentrant kind keeps no graph
    step = steps_of(model, x).of(2)
    assert step.saved_bytes == saved_by_hand(model, x)
    assert step.saved.get(("", 0), 0) == step.saved_bytes  # everything was kept inside the model


@pytest.mark.parametrize("name", ["plain", "attention", "tied", "squeezenet"])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_the_peak_is_that_of_the_memory_tracker(name, optimizer):
    tracker = pytest.importorskip("torch.distributed._tools.mem_tracker").MemTracker()
    model, x = build(name)
    peak = steps_of(model, x, optimizer=optimizer.lower()).of(2).peak.bytes
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    torchs = getattr(torch.optim, optimizer)(trained, lr=1e-3, foreach=False)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    torchs.step()
    torchs.zero_grad()
    tracker.track_external(model, torchs, x)
    with tracker:
        output = model(x)
        loss = output.sum()
        loss.backward()
        torchs.step()
    counted = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    # A number is not a storage: what an optimizer keeps of its step may be counted otherwise.
    n_scalars = 8 * len(list(model.parameters()))
    assert counted - n_scalars <= peak <= counted + n_scalars


def test_a_step_leaves_the_model_as_it_was():
    model, x = build("plain")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    own = [id(parameter) for parameter in model.parameters()]
    ms.summary(model.eval(), x, train=True, fit="1MB")
    assert [id(parameter) for parameter in model.parameters()] == own
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training


def test_the_largest_batch_fits_and_one_more_does_not():
    model, x = build("squeezenet")
    fit = ms.summary(model, x, train=True, optimizer="sgd", fit="30MB").training.fit
    assert fit.is_computed
    assert fit.batch > 1
    assert fit.peak_bytes <= 30e6 < fit.next_bytes
    for batch, n_bytes in ((fit.batch, fit.peak_bytes), (fit.batch + 1, fit.next_bytes)):
        assert run_step(model, (x,), StepOptions("sgd"), batch=batch).peak.bytes == n_bytes


def test_savings_are_steps_that_were_run():
    model, x = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 4, 3)), torch.zeros(2, 4, 32, 32)
    assert not ms.summary(model, x, fit="1GB").training.savings  # the batch fits
    training = ms.summary(model, x, fit="10kB").training
    peaks = {saving.keyword: saving.peak_bytes for saving in training.savings}
    expected = {"--amp bfloat16": StepOptions(amp="bfloat16"), "--optimizer sgd": StepOptions("sgd")}
    assert set(peaks) == set(expected)
    for keyword, options in expected.items():
        step = run_step(model, (x,), options, way="fake", batch=2)
        assert peaks[keyword] == step.peak.bytes < training.peak_bytes


def test_every_amount_of_memory_is_in_binary_units():
    training = ms.summary(*build("plain"), fit="16GB").training
    words = [f"{key}: {value}" for key, value in training_facts(training)]
    assert "fit: the largest batch is " in str(words)
    assert "; batch 2 fits into 14.90 GiB (16 GB)" in str(words)
    assert "on a GPU" not in str(training_facts(training, is_on_cpu=True))
    assert not [one for one in words if re.search(r"[\d.] ?[kMG]B", one.replace("(16 GB)", ""))]
    assert "on a GPU: leave about 1 GiB for CUDA itself: --fit 13GiB" in words


def test_optimizers_of_your_own_and_what_cannot_be_known():
    model, x = build("plain")
    convs = [torch.optim.Adam(model[0].parameters()), torch.optim.SGD(model[4].parameters(), lr=0.1)]
    training = ms.summary(model, x, train=True, optimizer=convs).training
    n_adam = sum(p.numel() * 4 for p in model[0].parameters())
    assert training.optimizer == "Adam and SGD"
    assert training.optimizer_bytes == 2 * n_adam + 2 * 4  # and two counters of steps
    with pytest.raises(UsageError, match="LBFGS"):
        ms.summary(model, x, train=True, optimizer=torch.optim.LBFGS(model.parameters()))
    with pytest.raises(UsageError, match="is not an optimizer"):
        ms.summary(model, x, train=True, optimizer="adamm")
    with pytest.raises(CannotRunError, match="nothing is trained"):
        ms.summary(model, x, train=True, freeze="*")


def test_a_forward_needs_its_weights_and_the_two_largest_outputs():
    model = nn.Sequential(
        nn.Linear(8, 1000, bias=False), nn.Linear(1000, 1000, bias=False), nn.Linear(1000, 8, bias=False)
    )
    x = torch.zeros(4, 8)
    weights = sum(p.numel() for p in model.parameters())
    assert forward_peak(model, (x,)) == 4 * (weights + x.numel() + 4 * 1000 + 4 * 1000)


def test_budgets_rest_on_the_peaks():
    model, x = build("squeezenet")
    peak = run_step(model, (x,), StepOptions(), way="fake", batch=1).peak.bytes
    for limit, is_over in ((peak, False), (peak - 1, True)):
        record = ms.check(model, x, select="MS505", max_train_memory=limit)
        assert [finding.code for finding in record.findings] == ["MS505"] * is_over
