"""What `diff` says of two checkpoints of one architecture: the head, and how the other weights are related."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torchvision.models import VisionTransformer, mobilenet_v3_small, resnet18, squeezenet1_1

import modelscope_cli as ms
from modelscope_cli.analysis.comparison.compare import diff_tensors
from modelscope_cli.analysis.comparison.relation import relations
from modelscope_cli.report.diff.table import answer

BUILDERS = {
    "mobilenet": (mobilenet_v3_small, "classifier.3", False),
    "squeezenet": (squeezenet1_1, "classifier.1", False),
    "vit": (
        lambda num_classes: VisionTransformer(32, 8, 2, 2, 64, 128, num_classes=num_classes),
        "heads.head",
        True,
    ),
}


def made(name, n_classes, seed):
    torch.manual_seed(seed)
    return BUILDERS[name][0](num_classes=n_classes)


def causes(a, b):
    rows, _, _ = diff_tensors(a, b)
    return {cause.kind: cause.message for cause in relations(rows, a, b)}


def fine_tuned(model):
    """Return the state after some steps of a real optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        scores = model(torch.randn(4, 3, 32, 32))
        nn.functional.cross_entropy(scores, torch.arange(4)).backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize(
    ("bad", "n", "is_b"),
    [(float("nan"), 1, False), (float("inf"), 40, True), (-float("inf"), 64 * 64 * 9, False),
     (float("nan"), 64 * 64 * 9, True)],
)  # fmt: skip
def test_values_that_are_not_finite_come_first_and_such_a_weight_has_no_relation(bad, n, is_b):
    net = nn.Sequential(*(nn.Conv2d(width, 64, 3) for width in (3, 64, 64)))
    a, name = net.state_dict(), "1.weight"
    b = {
        key: value + 1e-4 * torch.randn(value.shape) if value.ndim > 1 else value for key, value in a.items()
    }
    b[name] = a[name].clone()
    b[name].view(-1)[:n] = bad
    rows, _, _ = diff_tensors(*((a, b) if is_b else (b, a)))
    first, second = relations(rows, *((a, b) if is_b else (b, a)))
    what = "infinite" if abs(bad) == float("inf") else "NaN"
    side, other = "BA" if is_b else "AB"
    assert first.message == f"{side} has {n:,} {what} value{'s' * (n > 1)} in {name}, {other} has none there"
    assert "2 of 3 weights are close to those of A" in second.message
    what = "the same as in A except for" if n < 50 else "not compared, because of NaN or infinity"
    assert f"1 of 3 weights is {what}" in second.message
    (row,) = [row for row in rows if row.name == name]
    assert (row.status, row.nonfinite, row.max_abs, row.rel_l2, row.cosine) == (
        "changed",
        n,
        None,
        None,
        None,
    )


@pytest.fixture(scope="module", params=BUILDERS)
def case(request):
    """Return the name of a model, its state with 30 classes, and a model with 7 classes on the same backbone."""
    a = made(request.param, 30, 0).state_dict()
    other = made(request.param, 7, 1)
    head = BUILDERS[request.param][1]
    other.load_state_dict(
        {name: one if name.startswith(f"{head}.") else a[name] for name, one in other.state_dict().items()}
    )
    return request.param, head, a, other


def test_the_head_is_named_and_the_backbone_is_equal(case):
    _, head, a, other = case
    found = causes(a, other.state_dict())
    unit = "output channels" if isinstance(other.get_submodule(head), nn.Conv2d) else "classes"
    assert found["head"] == f"{head} has 30 {unit} in A and 7 in B"
    n = sum(one.ndim > 1 and name.endswith("weight") for name, one in a.items()) - 1
    assert found["backbone"] == f"all {n} other weights are equal"


def test_a_renamed_head_is_found(case):
    _, head, a, other = case
    b = {
        name.replace(f"{head}.", "top.") if name.startswith(f"{head}.") else f"body.{name}": one
        for name, one in other.state_dict().items()
    }
    found = causes(a, b)
    assert found["head"].startswith(f"{head} has 30 ")
    assert found["head"].endswith(" in A and 7 in B, where it is top")
    assert "are equal" in found["backbone"]


def test_fine_tuning_and_another_start_are_told_apart(case):
    name, _, a, other = case
    tuned = causes(a, fine_tuned(copy.deepcopy(other)))["backbone"]
    assert "close to those of A, as after fine-tuning" in tuned
    assert "unrelated" not in tuned
    apart = causes(a, fine_tuned(made(name, 7, 2)))["backbone"]
    assert "unrelated to those of A" in apart
    assert "close" not in apart


def test_rounded_weights_are_not_called_fine_tuned(case):
    _, _, a, _ = case
    wide = {name: one.double() if one.is_floating_point() else one for name, one in a.items()}
    assert "are the same, rounded to float32 in A" in causes(a, wide)["weights"]
    for dtype in (torch.float16, torch.bfloat16):
        b = {name: one.to(dtype) if one.is_floating_point() else one for name, one in a.items()}
        back = {name: one.to(a[name].dtype) for name, one in b.items()}
        for rounded in (b, back):
            text = f"are the same, rounded to {str(dtype)[6:]} in"
            assert f"{text} B" in causes(a, rounded)["weights"]
            assert f"{text} A" in causes(rounded, a)["weights"]


@pytest.mark.parametrize(("part", "kind"), [
    (lambda x: x.to(torch.float8_e4m3fn), "float8 (e4m3)"), (lambda x: x.half(), "float16"),
    (lambda x: (x * 1.1).bfloat16(), None), (lambda x: (x + 0.01).bfloat16(), None),
])  # fmt: skip
def test_a_weight_that_is_rounded_otherwise_than_the_rest_is_named(part, kind):
    made = torch.Generator().manual_seed(0)
    a = {f"{name}.weight": torch.randn(48, 64, generator=made) for name in "uvwxy"}
    b = {name: one.bfloat16() for name, one in a.items()} | {"w.weight": part(a["w.weight"])}
    text = causes(a, b)["weights"]
    rest, own = ("4 of 5 weights are the same, rounded to bfloat16 in B", "1 of 5 weights is ")
    assert rest in text
    assert (f"{own}the same, rounded to {kind} in B: w" in text) == (kind is not None)
    assert (f"{own}close to those of A" in text) == (kind is None)


def test_rounded_statistics_are_not_called_those_of_a_frozen_norm():
    a = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    a[1].running_var.uniform_(0.5, 2)
    b = {name: one.bfloat16().float() if one.ndim else one for name, one in a.state_dict().items()}
    assert [*causes(a.state_dict(), b)] == ["weights"]


@pytest.mark.parametrize("kept", [0.5, 0.1, 0.02])
def test_pruned_and_fine_tuned_weights_are_not_called_rounded(kept):
    a = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    pruned = a * 1.01 * (a.abs() >= a.abs().flatten().quantile(1 - kept))
    assert "rounded" not in causes({"fc.weight": a}, {"fc.weight": pruned})["weights"]


def test_a_small_step_before_rounding_is_not_called_rounding(case):
    _, _, a, _ = case
    moved = {
        name: one * (1 + 2e-3 * torch.randn_like(one)) if one.is_floating_point() else one
        for name, one in a.items()
    }
    b = {name: one.bfloat16() if one.is_floating_point() else one for name, one in moved.items()}
    text = causes(a, b)["weights"]
    assert "rounded" not in text
    assert "(cosine at least 0.9999)" in text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_tolerance_holds_for_another_dtype(dtype):
    torch.manual_seed(0)
    a = {"conv.weight": torch.randn(8, 3, 3, 3), "fc.weight": torch.randn(4, 8)}
    b = {"conv.weight": a["conv.weight"].to(dtype), "fc.weight": (a["fc.weight"] * 1.1).to(dtype)}
    for tolerance, statuses in ((0.0, ["retyped"] * 2), (0.01, ["same", "retyped"]), (0.2, ["same"] * 2)):
        rows, _, _ = diff_tensors(a, b, tolerance)
        assert [row.status for row in rows] == statuses
    rows, _, _ = diff_tensors(a, b, 0.01)
    assert next(relations(rows, a, b)).message.endswith("; 1 of 2 weights is equal within the tolerance")


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 4, 3)
    )


def test_the_cause_says_how_many_weights_are_rounded():
    a, b = convolutions(), convolutions()
    noise = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        b[0].weight.copy_(b[0].weight.bfloat16())
    (cause,) = ms.diff(a, b, noise).causes
    expected = "1 of 3 weights is the same, rounded to bfloat16 in B: 0; 2 of 3 weights are equal"
    assert (cause.layer, cause.message) == ("0", expected)
    b[3].weight.data = b[3].weight.data.bfloat16().float()
    (cause,) = ms.diff(a, b, noise).causes
    assert cause.message == "2 of 3 weights are the same, rounded to bfloat16 in B; 1 of 3 weights is equal"
    b.bfloat16().float()
    (cause,) = ms.diff(a, b, noise).causes
    assert (cause.layer, cause.message) == (None, "all 3 weights are the same, rounded to bfloat16 in B")


def test_tensors_of_one_layer_are_one_cause():
    a, b = convolutions(), convolutions()
    with torch.no_grad():
        for one in (b[1].weight, b[1].bias, b[1].running_mean):
            one.add_(0.25)
    (cause,) = ms.diff(a.eval(), b.eval(), torch.randn(2, 3, 12, 12)).causes
    assert (cause.layer, cause.message) == ("1", "3 tensors changed: 1; all 3 weights are equal")


def renamed_as_exported(state):
    return {f"onnx::Conv_{n}": one for n, one in enumerate(state.values())}


def test_tensors_without_layers_are_named():
    torch.manual_seed(0)
    a = renamed_as_exported({n: torch.randn(8, 4, 3, 3) for n in range(5)})
    text = causes(a, a | {"onnx::Conv_3": a["onnx::Conv_3"].abs()})["weights"]
    assert text.startswith("1 of 5 weights is ")
    assert text.endswith(" of the values: onnx::Conv_3; 4 of 5 weights are equal")
    biased = a | {"onnx::Add_9": torch.zeros(8)}
    text = causes(biased, biased | {"onnx::Add_9": torch.ones(8)})["weights"]
    assert text == "onnx::Add_9 changed in 8 of 8 values, by up to 1; all 5 weights are equal"


def test_a_weight_that_only_one_side_has_is_not_called_equal():
    torch.manual_seed(0)
    a = {f"{n}.weight": torch.randn(8, 4, 3, 3) for n in range(5)}
    b = {name: one for name, one in a.items() if name != "2.weight"}
    assert causes(a, b)["weights"] == "1 only in A: 2.weight; 4 of 5 weights are equal"
    b["onnx::Conv_7"] = a["2.weight"].flip(3)
    assert causes(a, b)["weights"] == (
        "1 only in A: 2.weight; 1 only in B: onnx::Conv_7; 4 of 5 weights are equal"
    )


def test_only_running_statistics_moved():
    a = resnet18(num_classes=4).state_dict()
    b = {name: one + name.endswith("running_mean") for name, one in a.items()}
    assert causes(a, b)["weights"] == ("20 tensors changed: bn1 to layer4.1.bn2; all 21 weights are equal")


def test_layers_that_were_not_loaded_are_named():
    a = resnet18(num_classes=4).state_dict()
    late = {name for name in a if name.startswith("layer4") and a[name].ndim > 1}
    b = {name: torch.randn_like(one) if name in late else one for name, one in a.items()}
    text = causes(a, b)["weights"]
    assert text.startswith("5 of 21 weights are unrelated to those of A (cosine at most")
    assert text.endswith("): layer4.0.conv1 to layer4.1.conv2; 16 of 21 weights are equal")


def test_other_inputs_and_other_architectures():
    a = resnet18(num_classes=4).state_dict()
    grey = causes(a, a | {"conv1.weight": torch.randn(64, 1, 7, 7)})
    assert grey["input"] == "conv1.weight is 64x3x7x7 in A and 64x1x7x7 in B"
    assert set(causes(a, mobilenet_v3_small().state_dict())) == {"architecture"}
    vit = made("vit", 3, 0).state_dict()
    larger = vit | {"encoder.pos_embedding": torch.randn(1, 65, 64)}
    assert causes(vit, larger)["input"] == "encoder.pos_embedding is 1x17x64 in A and 1x65x64 in B"


def test_a_bias_of_zeros_that_an_exporter_left_out_changes_nothing():
    a = {"conv.weight": torch.randn(4, 3, 1, 1), "conv.bias": torch.zeros(4)}
    b = {"conv.weight": a["conv.weight"]}
    (_, row), _, _ = diff_tensors(a, b, is_exported=True)
    assert (row.status, row.matched) == ("folded", "all zeros, the same as no bias")
    (_, row), _, _ = diff_tensors(a, b)  # torch would not load it
    assert row.status == "removed"
    (_, row), _, _ = diff_tensors(a | {"conv.bias": torch.ones(4)}, b, is_exported=True)
    assert (row.status, row.matched) == ("removed", None)


def test_a_multiple_is_not_called_fine_tuned():
    a = resnet18(num_classes=4).state_dict()
    found = causes(a, a | {"layer1.0.conv1.weight": -3 * a["layer1.0.conv1.weight"]})
    assert found["scaled"] == "layer1.0.conv1.weight: B has the values of A times -3"
    scaled = "the same as in A up to a factor"
    assert found["weights"] == f"1 of 21 weights is {scaled}; 20 of 21 weights are equal"


def test_codes_are_not_compared():
    torch.manual_seed(0)
    a = {"0.weight": torch.randn(8, 16), "1.weight": torch.rand(8, 16) / 10}
    codes = {"1.weight": (a["1.weight"] * 1270).to(torch.int8)}
    missing = a | codes
    for sides in ((a, missing), (missing, a), (a, a | {"1.weight": codes["1.weight"][:, ::2]})):
        text = causes(*sides)["weights"]
        assert text.endswith("; 1 of 2 weights is equal")
        assert "1 of 2 weights is not compared: int8 codes, whose scale is not known: 1" in text


@pytest.mark.filterwarnings("ignore")  # torch moves it to torchao
def test_quantised_tensors_of_torch_are_compared():
    weight = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    ours, theirs = (torch.quantize_per_tensor(weight, step, 0, torch.qint8) for step in (0.03, 0.05))
    assert "close to those of A" in causes({"weight": theirs}, {"weight": ours})["weights"]


def test_a_weight_that_an_exporter_transposed_is_the_same():
    torch.manual_seed(0)
    a = {"attn.in_proj_weight": torch.randn(12, 4), "fc.weight": torch.randn(5, 4)}
    b = {"val_10": a["attn.in_proj_weight"].T, "fc.weight": a["fc.weight"]}
    rows, _, _ = diff_tensors(a, b, is_exported=True)
    assert [row.status for row in rows] == ["folded", "same"]
    rows, _, _ = diff_tensors(a, b | {"val_10": b["val_10"] + 1}, is_exported=True)
    assert [row.status for row in rows] == ["removed", "same", "added"]


@pytest.mark.parametrize("change", ["tuned", "one value", "bfloat16", "unrelated"])
def test_a_matrix_that_an_exporter_renamed_and_transposed_is_compared(change, tmp_path):
    onnx = pytest.importorskip("onnx")
    torch.manual_seed(0)
    a = {f"{name}.weight": torch.randn(6, 8) for name in "abc"}
    b = {name: one.clone() for name, one in a.items()}
    if change == "tuned":
        b = {name: one + 0.1 * torch.randn(6, 8) for name, one in b.items()}
    elif change == "one value":
        b["b.weight"][1, 2] += 1
    else:
        b = {
            name: one.bfloat16().float() if change == "bfloat16" else torch.randn(6, 8)
            for name, one in b.items()
        }
    bias = torch.randn(6)
    stored = {"a.bias": bias} | {f"onnx::MatMul_{n}": one.T.contiguous() for n, one in enumerate(b.values())}
    initialisers = [onnx.numpy_helper.from_array(one.numpy(), name) for name, one in stored.items()]
    graph = onnx.helper.make_graph([], "g", [], [], initialisers)
    onnx.save(onnx.helper.make_model(graph), tmp_path / "b.onnx")
    torch.save(a | {"a.bias": bias}, tmp_path / "a.pth")
    found = {
        "tuned": "all 3 weights are close to those of A",
        "one value": "the same as in A except for 2.1 % of the values",
        "bfloat16": "all 3 weights are the same, rounded to bfloat16 in B",
        "unrelated": "only in B",
    }
    assert found[change] in " ".join(
        one.message for one in ms.diff(tmp_path / "a.pth", tmp_path / "b.onnx").causes
    )


def test_weights_pruned_by_masks_are_compared_as_they_are_computed(tmp_path):
    """As `torch.nn.utils.prune` saves them: the weight before, and its mask."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3))
    torch.save(model.state_dict(), tmp_path / "a.pt")
    prune.ln_structured(model[0], "weight", 0.25, n=2, dim=0)
    torch.save(model.state_dict(), tmp_path / "b.pt")
    record = ms.diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert [row.status for row in record.tensors if row.name == "0.weight"] == ["changed"]
    assert "25 % of the values set to zero" in record.causes[0].message


def small():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.Linear(8, 4)
    ).state_dict()


ASIDE = {  # of a change that no weight shows: what is told first
    "missing": (lambda b: b.pop("3.bias"), "3.bias is missing in B; all 3 weights"),
    "several": (lambda b: [b.pop(f"{n}.bias") for n in (0, 3)], "0.bias, 3.bias are missing in B; all 3 weights"),
    "added": (lambda b: b.update({"3.scale": torch.ones(4)}), "3.scale is only in B; all 3 weights"),
    "reshaped": (lambda b: b.update({"3.bias": torch.ones(5)}), "3.bias is of another shape; all 3 weights"),
    "retyped": (
        lambda b: b.update({"1.num_batches_tracked": torch.tensor(0, dtype=torch.int32)}),
        "1.num_batches_tracked is int64 in A and int32 in B; all 3 weights",
    ),
    "and changed": (
        lambda b: (b.pop("0.bias"), b.update({"1.bias": torch.ones(8) / 3})),
        "0.bias is missing in B; 1.bias changed in 8 of 8",
    ),
    "quantised": (
        lambda b: (b.pop("3.weight"), b.pop("3.bias"), b.update({"3.zero_point": torch.tensor(0)})),
        "quantised in B (_packed_params), and not compared: 3; both other weights",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", ASIDE)
def test_what_differs_comes_before_the_weights_that_are_equal(change):
    b, (apply, said) = small(), ASIDE[change]
    apply(b)
    assert answer(ms.diff(small(), b)).startswith(f"Different: {said}")


def on_grid(weight, steps, size, *, is_affine=False):
    """Return a weight in groups of `size` values that are rounded to steps of an even or an affine quantiser."""
    x = weight.reshape(-1, size)
    low, high = (
        (x.amin(1, True).clamp_max(0), x.amax(1, True).clamp_min(0))
        if is_affine
        else (0, x.abs().amax(1, True))
    )
    step = (high - low) / steps
    zero = (-low / step).round() if is_affine else 0
    return (((x / step).round() + zero - zero) * step).reshape(weight.shape)


@pytest.mark.parametrize(("steps", "part", "is_affine", "said"), [
    (127, "tensor", False, 256), (127, "row", False, 256), (255, "row", True, 256), (7, "row", False, 16),
    (7, "group of 32", False, 16),
])  # fmt: skip
def test_weights_rounded_to_few_equidistant_values_are_not_called_fine_tuned(steps, part, is_affine, said):
    made = torch.Generator().manual_seed(0)
    a = {f"{name}.weight": torch.randn(16, 64, generator=made) for name in "uv"}
    size = {"tensor": 16 * 64, "row": 64}.get(part, 32)
    b = {name: on_grid(one, steps, size, is_affine=is_affine) for name, one in a.items()}
    text = f"both weights are the same, rounded to at most {said} equidistant values per {part} in"
    assert (causes(a, b)["weights"], causes(b, a)["weights"]) == (f"{text} B", f"{text} A")
    moved = {name: one + 0.05 * torch.randn(16, 64, generator=made) for name, one in a.items()}
    for other in (moved, {name: on_grid(one, steps, size) for name, one in moved.items()}):
        assert "close to those of A" in causes(a, other)["weights"]
