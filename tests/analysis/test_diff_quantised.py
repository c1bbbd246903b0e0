"""`diff` of a model and its quantised, cast or changed twin, held against torchao."""

import copy
import math

import pytest
import torch
from PIL import Image
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.report.diff.table import answer

faults = pytest.importorskip("onnx_faults")
X = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(3))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x):
        return self.c(self.b(self.a(x).relu()).relu())


def quantised(model):
    quantization = pytest.importorskip("torchao.quantization")
    twin = copy.deepcopy(model)
    quantization.quantize_(twin, quantization.Int8WeightOnlyConfig())
    return twin


def test_the_distance_of_a_quantised_model_is_torchaos():
    utils = pytest.importorskip("torchao.quantization.utils")
    torch.manual_seed(0)
    model, x = Mlp().eval(), torch.randn(6, 12)
    record = ms.diff(model, quantised(model), x)
    with torch.no_grad():
        theirs = utils.compute_error(model(x), quantised(model)(x)).item()
    assert -20 * math.log10(record.layers[-1].rel_l2) == pytest.approx(theirs, abs=1e-3)
    assert record.tolerance == 0.1


def test_a_compiled_model_is_refused_with_what_compares_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    with pytest.raises(UsageError, match=r"by torch\.compile") as caught:
        ms.diff(model, torch.compile(model, backend="eager"), torch.randn(2, 4))
    assert "torch.testing.assert_close" in caught.value.hint


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_type_of_a_cast_is_the_coarsest_that_holds_the_values(dtype):
    class Cast(nn.Module):
        def forward(self, x):
            return x.to(dtype).float()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Identity(), nn.Conv2d(3, 8, 3)).eval()
    other = copy.deepcopy(net)
    other[0] = Cast()
    kinds = [
        (one.kind, str(dtype).removeprefix("torch.") in one.message) for one in ms.diff(net, other, X).causes
    ]
    assert kinds == [("cast", True)]


@pytest.mark.filterwarnings("ignore")  # torch moves it to torchao
def test_a_model_that_torch_fx_quantised_is_neither_a_file_nor_exported():
    get_default_qconfig_mapping = pytest.importorskip("torch.ao.quantization").get_default_qconfig_mapping
    fx = pytest.importorskip("torch.ao.quantization.quantize_fx")
    engine = next(
        one for one in ("x86", "qnnpack", "fbgemm") if one in torch.backends.quantized.supported_engines
    )
    torch.backends.quantized.engine = engine
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), torch.randn(4, 3, 8, 8)
    prepared = fx.prepare_fx(model, get_default_qconfig_mapping(engine), (x,))
    prepared(x)
    record = ms.diff(model, fx.convert_fx(prepared), x)
    assert record.is_same
    assert record.matched_by is None
    assert "export" not in str(record)
    assert record.tolerance == 0.1


def test_ties_of_the_highest_score_are_counted(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    model, b = (nn.Sequential(nn.Flatten(), nn.Linear(192, 3)) for _ in range(2))
    with torch.no_grad():
        b[1].weight.zero_()
        b[1].bias.copy_(torch.tensor([1.0, 1.0, 0.0]))
    record = ms.diff(model, b, tmp_path / "0.png", size=8)
    assert record.ties == 1
    assert "B has a tie for the highest score" in str(record)


def test_two_trainings_are_told_by_the_weights_that_moved_most():
    torch.manual_seed(0)
    a = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3))
    b = copy.deepcopy(a)
    with torch.no_grad():
        for layer, share in ((b[0], 0.01), (b[2], 0.2), (b[4], 0.05)):
            layer.weight += share * layer.weight.norm() / layer.weight.numel() ** 0.5
    (cause,) = ms.diff(a, b, torch.randn(2, 3, 8, 8)).causes
    assert (cause.kind, cause.layer) == ("weights", None)
    assert cause.message.startswith("all 3 weights are close to those of A")


class Small(nn.Module):
    def __init__(self, has_norm):
        super().__init__()
        norm = nn.BatchNorm2d(8) if has_norm else nn.Identity()
        self.f = nn.Sequential(
            nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU()
        )
        self.head = nn.Linear(8 * 5 * 5, 4)
        for one in self.modules():
            if isinstance(one, nn.BatchNorm2d):
                nn.init.uniform_(one.running_var, 0.05, 0.1)

    def forward(self, x):
        return self.head(self.f(x).flatten(1))


@pytest.mark.parametrize("is_spoilt", [False, True])
@pytest.mark.parametrize("has_norm", [True, False])
def test_codes_of_a_quantised_file_are_not_the_outputs_of_layers(has_norm, is_spoilt, tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization")
    torch.manual_seed(0)
    model = Small(has_norm).eval()
    faults.export(model, X, tmp_path / "net.onnx", dynamo=False)
    quantization.quantize_dynamic(tmp_path / "net.onnx", tmp_path / "q.onnx")
    if is_spoilt:
        nn.init.normal_(model.f[4].weight)
    record = ms.diff(model, tmp_path / "q.onnx", X)
    status = {row.name: row.status for row in record.layers}
    far = [name for name in status if status[name] == "changed"]
    assert far == (["f.4", "f.5", "head", ""] if is_spoilt else [])
    assert status["f.3"] == "same"
    assert {row.name: row.matched for row in record.layers}.get("f.1") == (
        "with f.0 folded in" if has_norm else "not in B by name"
    )
    assert all(row.b_dtype in (None, "float32") for row in record.layers)
    assert ("still differ" in answer(record), record.is_same) == (is_spoilt, not is_spoilt)


@pytest.mark.parametrize("is_spoilt", [False, True])
def test_the_bias_of_a_last_convolution_is_added_outside_its_scope(is_spoilt, tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 1)).eval()
    nn.init.constant_(model[2].bias, 2.0)
    faults.export(model, X, tmp_path / "net.onnx", dynamo=False)
    quantization.quantize_dynamic(tmp_path / "net.onnx", tmp_path / "q.onnx")
    if is_spoilt:
        nn.init.normal_(model[2].weight)
    rows = ms.diff(model, tmp_path / "q.onnx", X).layers
    assert [row.name for row in rows if row.status != "same"] == (["2", ""] if is_spoilt else [])


@pytest.mark.parametrize("is_spoilt", [False, True])
def test_of_an_export_of_integer_operators_only_the_output_is_said_to_be_compared(is_spoilt, tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization")
    torch.manual_seed(0)
    model, name = Small(True).eval(), tmp_path / "net.onnx"
    faults.export(model, X, name, dynamo=False, input_names=["x"])
    batches = iter([{"x": X.numpy()}])
    reader = type(
        "Reader", (quantization.CalibrationDataReader,), {"get_next": lambda _: next(batches, None)}
    )
    made = {"quant_format": quantization.QuantFormat.QOperator}
    quantization.quantize_static(name, tmp_path / "q.onnx", reader(), **made)
    if is_spoilt:
        nn.init.normal_(model.head.weight)
    record = ms.diff(model, tmp_path / "q.onnx", X)
    text, n_layers = answer(record), len(record.layers) - 1
    start = (
        "B is quantised: only the output was compared, within a relative L2 of 0.1; the largest difference is"
    )
    untested = f"B is quantised: its integer weights and {n_layers} layers were not compared"
    assert text.startswith(f"Different: {untested}; first" if is_spoilt else start)
    assert [(one.kind, one.message) for one in record.causes] == [("quantised", untested)]
    torch.save(model.state_dict(), tmp_path / "net.pt")
    with pytest.raises(CannotRunError, match="no tensor in common") as caught:
        ms.diff(tmp_path / "net.pt", tmp_path / "q.onnx")
    assert f"modelscope diff NET {tmp_path / 'q.onnx'} -c {tmp_path / 'net.pt'} IMAGE" in caught.value.hint
    quantization.quantize_dynamic(name, tmp_path / "q.onnx")
    assert "B is quantised: 3 tensors of integers" in str(ms.diff(tmp_path / "net.pt", tmp_path / "q.onnx"))


def test_an_export_is_compared_in_the_size_asked_for_and_random_weights_of_a_are_told(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("""
import torch
class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(784, 2))
""")
    space = {}
    exec(file.read_text(), space)
    net = space["Net"]().eval()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    faults.export(net, X, tmp_path / "net.onnx", dynamo=False)
    sides = f"{file}:Net", tmp_path / "net.onnx"
    assert ms.diff(*sides, checkpoint=tmp_path / "net.pt", size="16").is_same
    record = ms.diff(*sides, input_shape="1,3,16,16")
    assert answer(record).startswith("Different: A has random weights; first divergence")
    assert [cause.hint.partition("   ")[0] for cause in record.causes] == ["-c FILE"]
    torch.manual_seed(0)  # other weights that were loaded are not random
    torch.save(space["Net"]().state_dict(), tmp_path / "other.pt")
    assert "random" not in answer(ms.diff(*sides, checkpoint=tmp_path / "other.pt", size="16"))


@pytest.mark.parametrize("modes", [("eval", "train"), ("train", "eval"), ("train", "train")])
def test_of_one_side_in_training_mode_its_norms_and_dropout_are_named(modes):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.LayerNorm(14))
    record = ms.diff(model, copy.deepcopy(model), torch.randn(2, 3, 16, 16), mode=modes[0], b_mode=modes[1])
    messages = [cause.message for cause in record.causes]
    side = "AB"[modes.index("train")]
    told = f"{side} is in training mode, which changes 1 (BatchNorm2d), 3 (Dropout)"
    assert messages == ([told] if "eval" in modes else [])
