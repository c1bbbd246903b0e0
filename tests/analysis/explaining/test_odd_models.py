"""Models that write to their input, run layers again, take a dict or one image, or have no gradient."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError

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
