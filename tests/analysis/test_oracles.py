"""Attacks against captum and foolbox, ablation of channels against captum: where they answer the same question.

Neither rounds to 8 bits, stops early or keeps the best picture on the way, so each attack is compared after the
steps that ours took.
"""

import os
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captum.attr import LayerFeatureAblation
from captum.robust import FGSM, PGD
from tolerance import A_NETWORK, assert_close, close
from torch import Tensor, nn

from modelscope_cli.analysis.ablation.ablating import AblationRequest, ablate
from modelscope_cli.analysis.attack.request import AttackRequest
from modelscope_cli.analysis.attack.search import BALLS, BestAttempt, Goal, search
from modelscope_cli.analysis.outputs.target_spec import parse_aim
from modelscope_cli.hooks.selection import select
from modelscope_cli.inputs.batch import Batch, Inputs
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.records.run import InputInfo, ModelInfo, WeightsInfo

os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # foolbox asks for git as it is imported
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import foolbox

# captum asks for the gradient itself and says so.
pytestmark = pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")

STEPS = 4
RADIUS = {"linf": 2 / 255, "l2": 0.3}


class Net(nn.Module):
    """Smooth, so that no gradient is zero and no sign hangs on the last bit of one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3, stride=2)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.conv2(torch.tanh(self.conv1((x - 0.45) / 0.25))))
        return self.head(x.mean((2, 3)))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().double().eval()


@pytest.fixture
def pixels() -> Tensor:
    """8-bit levels, some of them black or white."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (1, 3, 16, 16), generator=generator).double() / 255


@pytest.fixture(params=["untargeted", "targeted"])
def goal(net: nn.Module, pixels: Tensor, request: pytest.FixtureRequest) -> Goal:
    """To leave the model's answer, or to reach the one it finds least likely."""
    with torch.no_grad():
        logits = net(pixels)
    is_targeted = request.param == "targeted"
    return Goal(int(logits.argmin() if is_targeted else logits.argmax()), is_targeted)


def attacked(net: nn.Module, pixels: Tensor, goal: Goal, method: str, norm: str) -> tuple[BestAttempt, int]:
    """Return what our search finds, and after how many steps."""
    n_steps = 1 if method == "fgsm" else STEPS
    found = search(
        net, pixels, goal, AttackRequest(method, norm, RADIUS[norm], n_steps, RADIUS[norm] / 2, seed=3)
    )
    assert found.iterations == len(found.losses[0]) - 1 >= 1, "the last step is the best of all"
    return found, found.iterations


def loss_of_each(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target, reduction="none")


def of_foolbox(
    net: nn.Module, pixels: Tensor, goal: Goal, norm: str, n_steps: int, start: Tensor | None
) -> Tensor:
    base = {"linf": foolbox.attacks.LinfPGD, "l2": foolbox.attacks.L2PGD}[norm]

    class FromStart(base):  # type: ignore[misc, valid-type]
        def get_random_start(self, x0: Any, epsilon: float) -> Any:
            return type(x0)(start)

    attack = FromStart(abs_stepsize=RADIUS[norm] / 2, steps=n_steps, random_start=start is not None)
    classes = torch.tensor([goal.index])
    criterion = foolbox.criteria.TargetedMisclassification if goal.is_targeted else foolbox.Misclassification
    model = foolbox.PyTorchModel(net, bounds=(0, 1), device="cpu")
    return attack(model, pixels, criterion(classes), epsilons=RADIUS[norm])[1]


def test_fgsm_is_captums_and_foolboxs(net: nn.Module, pixels: Tensor, goal: Goal) -> None:
    request = AttackRequest("fgsm", "linf", RADIUS["linf"], 1, RADIUS["linf"])
    found = search(net, pixels, goal, request)
    captum = FGSM(net, loss_of_each, lower_bound=0, upper_bound=1)
    captum.zero_thresh = 0
    theirs = captum.perturb(pixels, RADIUS["linf"], torch.tensor([goal.index]), targeted=goal.is_targeted)
    assert_close(found.pixels, theirs, A_NETWORK)
    if not goal.is_targeted:  # foolbox's own has no other kind
        attack = foolbox.attacks.LinfFastGradientAttack(random_start=False)
        model = foolbox.PyTorchModel(net, bounds=(0, 1), device="cpu")
        theirs = attack(model, pixels, torch.tensor([goal.index]), epsilons=RADIUS["linf"])[1]
        assert_close(found.pixels, theirs, A_NETWORK)


@pytest.mark.parametrize("norm", RADIUS)
@pytest.mark.parametrize("method", ["ifgsm", "pgd"])
def test_the_projected_way_is_foolboxs(
    net: nn.Module, pixels: Tensor, goal: Goal, method: str, norm: str
) -> None:
    found, n_steps = attacked(net, pixels, goal, method, norm)
    generator = torch.Generator().manual_seed(3)
    start = BALLS[norm](pixels, RADIUS[norm]).random(generator) if method == "pgd" else None
    theirs = of_foolbox(net, pixels, goal, norm, n_steps, start)
    assert_close(found.pixels, theirs, A_NETWORK)


def test_the_projected_way_is_captums(net: nn.Module, pixels: Tensor, goal: Goal) -> None:
    found, n_steps = attacked(net, pixels, goal, "ifgsm", "linf")
    captum = PGD(net, loss_of_each, lower_bound=0, upper_bound=1)
    captum.fgsm.zero_thresh = 0
    theirs = captum.perturb(
        pixels,
        radius=RADIUS["linf"],
        step_size=RADIUS["linf"] / 2,
        step_num=n_steps,
        target=torch.tensor([goal.index]),
        targeted=goal.is_targeted,
    )
    assert_close(found.pixels, theirs, A_NETWORK)


@pytest.mark.parametrize("name", ["conv1", "conv2", "head"])
def test_taking_out_a_channel_changes_the_logit_as_captum_says(
    net: nn.Module, pixels: Tensor, name: str
) -> None:
    info = ModelInfo("object", "net", "Net", WeightsInfo("none", "random", "seeded random"))
    loaded = LoadedModel(net, info, torch.device("cpu"), torch.float64, "custom", None, None)
    inputs = Inputs(InputInfo("noise", ()), 1, 1, lambda: iter([Batch((pixels,), 1)]))
    target = 2
    request = AblationRequest(is_by_channel=True, target=parse_aim(str(target)))
    ours = {
        row.channel: row.target_logit_change
        for row in ablate(loaded, inputs, select(net, [name], (), (pixels,)), request).rows
    }
    layer = net.get_submodule(name)
    n_channels = len(layer.weight)
    mask = torch.arange(n_channels).reshape(1, -1, *[1] * (2 if name != "head" else 0))
    theirs = LayerFeatureAblation(net, layer).attribute(
        pixels, layer_baselines=0, target=target, layer_mask=mask
    )
    for channel in range(n_channels):
        # captum's attribution is the score before less the score after
        assert -ours[channel] == close(float(theirs[0, channel].flatten()[0]), scale=0.01)
