"""Models that write to their input, run layers again, take a dict or one image, or have no gradient."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError

X = torch.rand(1, 3, 12, 12, generator=torch.Generator().manual_seed(0))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fc = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh()), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x * 2).mean((2, 3)))


class InPlace(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x *= 2
        return self.fc(self.body(x).mean((2, 3)))


class Reentrant(Plain):
    use_reentrant = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(checkpoint(self.body, x * 2, use_reentrant=self.use_reentrant).mean((2, 3)))


class NotReentrant(Reentrant):
    use_reentrant = False


class OneByOne(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert len(x) == 1
        return super().forward(x)


class OfDict(Plain):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return super().forward(batch["image"])


METHODS = "gradcam,saliency,integrated-gradients"


def cells(model: nn.Module, given: object = X, method: str = METHODS) -> list[float]:
    record = ms.explain(model.eval(), given, method=method, receipt=False)
    return [record.logit, *(row.adds_up_to or 0.0 for row in record.rows)]


@pytest.mark.parametrize("kind", [InPlace, Reentrant, NotReentrant, OneByOne])
def test_the_way_a_model_is_written_changes_no_map(kind: type[nn.Module]) -> None:
    given = X.clone()
    assert cells(kind(), given) == pytest.approx(cells(Plain()), rel=1e-5)
    assert torch.equal(given, X)


def test_one_image_in_a_dict_is_explained() -> None:
    assert cells(OfDict(), {"image": X}) == pytest.approx(cells(Plain()), rel=1e-5)


@pytest.mark.parametrize(
    ("last", "said"),
    [(lambda x: (x * 9).to(torch.uint8).float(), "'to'"), (lambda x: x.detach(), "'detach'")],
)
def test_where_no_gradient_goes_through_is_said(last, said) -> None:
    model = Plain()
    model.body.insert(0, nn.Identity())
    model.body[0].forward = last
    with pytest.raises(CannotRunError, match=f"{said} passes no gradient back"):
        cells(model, method="gradcam")


@pytest.mark.parametrize("method", ["gradcam", "saliency"])
def test_a_head_of_zeros_is_named_as_the_cause(method: str) -> None:
    model = Plain()
    torch.nn.init.zeros_(model.fc.weight)
    with pytest.raises(
        CannotRunError, match=r"every value of 'fc.weight' is zero, so the score does not depend"
    ):
        cells(model, method=method)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_a_quantized_layer_is_named() -> None:
    model = torch.ao.quantization.quantize_dynamic(Plain().eval(), {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(CannotRunError, match=r"layer 'fc' \(Linear\) is quantized"):
        cells(model)
    assert ms.explain(model, X, method="occlusion", receipt=False).rows


class Pair(Plain):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().forward(x + y)


def test_a_model_with_two_inputs_is_refused_with_a_hint_that_is_not() -> None:
    with pytest.raises(
        UsageError, match="needs more arguments: y, but explain takes models with one input"
    ) as error:
        ms.explain(Pair(), X)
    assert "modelscope ablate --help " in str(error.value.hint)
    with pytest.raises(CannotRunError, match=r"one input, images .* 1 x 3 x 12 x 12 and 1 x 3 x 12 x 12"):
        ms.explain(Pair(), {"x": X, "y": X})


@pytest.mark.parametrize("size", [(1, 1), (1, 2)])
def test_an_image_of_one_pixel_is_refused(size: tuple[int, int]) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    if size == (1, 2):
        (row,) = ms.explain(model, X[..., :1, :2], method="hirescam").rows
        assert {one.test: one.answer for one in row.receipt.tests}["image"] == "not made"
        return
    with pytest.raises(CannotRunError, match="one pixel has no parts") as error:
        ms.explain(model, X[..., :1, :1])
    assert error.value.hint == "input_shape=(1, 3, 224, 224)"


def test_the_predicted_class_is_tested_however_improbable_and_another_is_not() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 100)
    )
    image = torch.zeros(1, 3, 32, 32)
    image[..., 4:16, 4:16] = 3.0
    with torch.no_grad():
        model[0].weight.fill_(1 / 27)
        model[0].bias.fill_(-2.1)
        model[4].bias.zero_()
        model[4].weight.copy_(torch.linspace(-1, 1, 100)[:, None].expand(100, 8))
    first = ms.explain(model, image, method="hirescam")
    assert first.target_index == 99
    assert first.probability < 0.05
    assert first.rows[0].receipt.verdict.answer == "passed"
    other = ms.explain(model, image, method="hirescam", target=70).rows[0].receipt
    assert {one.test: one.reason for one in other.tests}["covering"].startswith("another class is predicted")


def test_a_method_that_does_not_fit_is_left_out_of_several_and_refused_by_name() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 3))
    record = ms.explain(model, X, receipt=False)
    assert [row.method for row in record.rows] == ["integrated-gradients"]
    assert record.unfit[0].startswith("hirescam: this model has no feature map")
    with pytest.raises(CannotRunError, match="no feature map"):
        ms.explain(model, X, method="hirescam")
