"""What frameworks put around a model: its layers keep the names that were written, and a criterion is not one."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from modelscope_cli.watching.forward_pass import is_criterion


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))


LAYERS = [("Net", "body.0", 0), ("Net", "body.1", 0), ("Net", "head", 0)]
PARAMETERS = [("Net", name) for name in ("body.0.weight", "body.0.bias", "head.weight", "head.bias")]


def train(model, criterion=F.cross_entropy, n=2, parameters=None):
    optimizer = torch.optim.SGD(parameters or model.parameters(), lr=0.1)
    for _ in range(n):
        loss = criterion(model(torch.randn(4, 6)), torch.randint(3, (4,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def named(heard):
    return heard.names(), [row[:2] for row in heard.reports[0].parameters]


class _FabricModule(nn.Module):
    """As Lightning's: what it wraps is in it twice, the first time perhaps inside yet another wrapper."""

    def __init__(self, model, forward_module=None):
        super().__init__()
        self._forward_module = forward_module or model
        self._original_module = model

    def forward(self, x):
        return self._forward_module(x)


def fabric_around_data_parallel():
    model = Net()
    return _FabricModule(model, nn.DataParallel(model))


def with_wrapped_parts():
    model = Net()
    model.body = nn.DataParallel(model.body)
    model.head = checkpoint_wrapper(model.head)
    return model


def of_a_subclass():
    class Ours(nn.DataParallel):
        pass

    return Ours(Net())


AROUND = {
    "data parallel": lambda: nn.DataParallel(Net()),
    "subclass": of_a_subclass,
    "averaged": lambda: AveragedModel(Net()),
    "fabric": lambda: _FabricModule(Net()),
    "fabric around data parallel": fabric_around_data_parallel,
    "parts of the model": with_wrapped_parts,
}


@pytest.mark.parametrize("around", AROUND)
def test_layers_and_parameters_have_the_names_that_were_written(watching, around):
    assert named(watching(lambda: train(AROUND[around]()))) == (LAYERS, PARAMETERS)


def test_layers_are_chosen_by_the_names_that_were_written(watching):
    heard = watching(lambda: train(with_wrapped_parts()), patterns=("body.*", "head"))
    assert heard.names() == LAYERS


def test_a_module_of_the_users_own_that_only_calls_its_child_keeps_its_name(watching):
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = Net()

        def forward(self, x):
            return self.module(x)

    assert watching(lambda: train(Mine())).names()[0] == ("Mine", "module.body.0", 0)


class Weighted(nn.Module):
    """A criterion with a parameter and a buffer of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("weight", torch.ones(3))

    def forward(self, scores, labels):
        return F.cross_entropy(scores * self.scale, labels, self.weight)


class Perceptual(nn.Module):
    """A criterion that looks through frozen layers, and gives its terms by name."""

    def __init__(self):
        super().__init__()
        self.eye = nn.Linear(3, 5).requires_grad_(False)

    def forward(self, *, scores, labels):
        return {"near": self.eye(scores).square().mean(), "right": F.cross_entropy(scores, labels)}


CRITERIA = {
    "of torch": nn.CrossEntropyLoss,
    "weighted": lambda: nn.CrossEntropyLoss(weight=torch.ones(3)),
    "without the mean": lambda: nn.CrossEntropyLoss(reduction="none"),
    "with a parameter": Weighted,
    "with frozen layers": Perceptual,
}


def loss_of(criterion, scores, labels):
    if isinstance(criterion, Perceptual):
        return sum(criterion(scores=scores, labels=labels).values())
    return criterion(scores, labels).mean()


@pytest.mark.parametrize("kind", CRITERIA)
def test_a_criterion_beside_the_model_has_no_row(watching, kind):
    def script():
        model, criterion = Net(), CRITERIA[kind]()
        both = [*model.parameters(), *criterion.parameters()]
        train(model, lambda scores, labels: loss_of(criterion, scores, labels), parameters=both)

    heard = watching(script)
    assert heard.names() == heard.names(step=1) == LAYERS
    assert [model.label for model in heard.recorder.registry.models] == ["Net"]
    names = [row[:2] for row in heard.reports[1].parameters]
    assert names[:4] == PARAMETERS
    own = {"with a parameter": [("Weighted", "scale")]}
    frozen = {"with frozen layers": [("Perceptual", "eye.weight"), ("Perceptual", "eye.bias")]}
    assert names[4:] == {**own, **frozen}.get(kind, [])


@pytest.mark.parametrize("kind", CRITERIA)
def test_a_criterion_in_one_module_with_the_model_has_no_row(watching, kind):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.criterion = Net(), CRITERIA[kind]()

        def forward(self, x, labels):
            return loss_of(self.criterion, self.model(x), labels)

    def script():
        both = Both()
        optimizer = torch.optim.SGD(both.parameters(), lr=0.1)
        both(torch.randn(4, 6), torch.randint(3, (4,))).backward()
        optimizer.step()

    assert [row[1] for row in watching(script).names()] == ["model.body.0", "model.body.1", "model.head"]


def test_a_task_of_timm_is_the_model_that_it_trains(watching):
    class TrainingTask(nn.Module):
        pass

    class ClassificationTask(TrainingTask):
        def __init__(self):
            super().__init__()
            self.trainable_module, self.criterion, self.teacher = Net(), Weighted(), Net()

        def forward(self, x, labels):
            with torch.no_grad():
                self.teacher(x)
            return {"loss": self.criterion(self.trainable_module(x), labels)}

    def script():
        task = ClassificationTask()
        optimizer = torch.optim.SGD(task.trainable_module.parameters(), lr=0.1)
        task(torch.randn(4, 6), torch.randint(3, (4,)))["loss"].backward()
        optimizer.step()

    assert named(watching(script)) == (LAYERS, PARAMETERS)


def test_a_model_that_returns_its_own_loss_is_a_model(watching):
    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def forward(self, x):
            return self.net(x).square().mean()

    heard = watching(lambda: train(Denoiser(), lambda loss, _: loss))
    assert [row[1] for row in heard.names()] == ["net.body.0", "net.body.1", "net.head"]


def test_a_discriminator_that_gives_one_number_is_not_a_criterion():
    critic = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
    faked = nn.Linear(6, 6)(torch.randn(1, 6))
    assert not is_criterion(critic, critic(faked).mean())
