"""The private doors to torch: which there are, and what is behind them."""

import ast
from collections import OrderedDict, defaultdict, deque, namedtuple
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from modelscope_cli.hooks import torch_private
from modelscope_cli.hooks.session import HookSession, Observer
from modelscope_cli.hooks.torch_private import children_of, in_backward, leaves_of, map_leaves, version_of

PACKAGE = Path(__file__).parents[2] / "modelscope_cli"
# Everything of torch's whose name begins with an underscore. Called are only those of `torch_private`; the base
# classes are older than most of torch, the others are read where they are there.
DOORS = {
    "hooks/torch_private.py": {
        *("_pytree", "_C", "_current_graph_task_id", "_version"),
        *("_functorch", "_pop_mode", "_push_mode", "_len_torch_function_stack"),
        *("_input_metadata", "_saved_other", "_compiled_call_impl"),
        *("_autograd", "_get_sequence_nr", "_current_autograd_node", "_sequence_nr"),
        *("_len_torch_dispatch_stack", "_python_dispatch", "_schema", "_base", "_foreach_norm"),
        *("_dynamo", "_FrameAction", "_FrameExecStrategy"),  # frames that torch.compile leaves alone
    },
    "hooks/layers.py": {
        *("_ConvNd", "_NormBase", "_MaxPoolNd", "_AvgPoolNd", "_AdaptiveAvgPoolNd", "_AdaptiveMaxPoolNd"),
    },
    "training/model.py": {"_ConvNd"},
    "analysis/pruning/masks.py": {"_ConvTransposeNd"},
    "analysis/activations/batch_norm.py": {"_BatchNorm"},
    "analysis/activations/observer.py": {"_NormBase"},
    "analysis/health/flow.py": {"_BatchNorm"},
    "analysis/predictions/preprocessing_check.py": {"_BatchNorm"},
    "inputs/decoding.py": {"_shutdown_workers"},
    "inputs/forward_signature.py": {"_forward_pre_hooks"},
    "analysis/summary/memory.py": {"_buffers", "_parameters", "_cdata", "_subclasses"},
    "analysis/summary/shapes.py": {"_count_flops"},
    "checkpoints/tensors.py": {"_metadata"},
    "watching/bookkeeping.py": {"_schedulers", "_milestones"},
    "watching/loss_graph.py": {"_saved_dim"},
    "watching/model_hooks.py": {"_is_replica", "_BatchNorm", "_DropoutNd", "_modules", "_parameters"},
    "watching/model_registry.py": {"_BatchNorm", "_DropoutNd"},
    "watching/forward_pass.py": {"_NormBase"},
    "watching/parameters.py": {"_fsdp_flattened"},
    "watching/replicas.py": {"_comm_hooks"},
    "watching/whole_outputs.py": {"_forward_hooks", "_forward_pre_hooks", "_softmax", "_log_softmax"},
    "watching/step_time.py": {"_BaseDataLoaderIter", "_num_workers"},
    "watching/workers.py": {"_utils", "_worker_loop", "_MapDatasetFetcher"},
    "analysis/outputs/target_spec.py": {"_IMAGENET_CATEGORIES", "_meta"},
    "models/onnx_net.py": {"_version"},
    "lean.py": {"_dynamo"},
}
# Not torch's: Python's own, the tool's own, and the protocol of notebooks.
OTHERS = {"_getframe", "_repr_html_", "_repr_png_", "_fields"}
OTHERS |= {"_compat_pickle", "_exit", "_run_exitfuncs", "_shutdown"}
# Typer's, of what stands before a word that is completed.
OTHERS |= {"_opt_prefixes", "_protected_args"}
# Of timm and transformers, read where they are there.
OTHERS |= {"_model_args", "_model_mapping"}
OTHERS |= {"_model_path"}  # of onnxruntime's sessions


def test_a_compiled_module_is_reported_however_it_was_compiled() -> None:
    plain, compiled = nn.Linear(2, 2), nn.Linear(2, 2)
    compiled.compile()
    found = [torch_private.is_compiled(module) for module in (plain, torch.compile(plain), compiled)]
    assert found == [False, True, True]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OTHERS


def _own_names(tree: ast.AST) -> set[str]:
    """Return the private names a file gives itself, or takes from another file of the package."""
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            own |= {alias.asname or "" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            own.add(node.attr)
    return own


def _private_names(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("modelscope_cli"):
            found |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {word for alias in node.names for word in alias.name.split(".")}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            name = node.args[1]
            found |= {name.value} if isinstance(name, ast.Constant) else set()
    outside = set() if path.name != "shapes.py" else {"_count_flops"}
    return {name for name in found if _is_private(name)} - (_own_names(tree) - outside)


def test_these_are_the_private_doors_to_torch():
    found = {str(path.relative_to(PACKAGE)): _private_names(path) for path in PACKAGE.rglob("*.py")}
    assert {file: names for file, names in found.items() if names} == DOORS


class Checkpointed(nn.Module):
    """Runs its layer once more inside the backward pass."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.use_reentrant = use_reentrant

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=self.use_reentrant)


class Counter(Observer):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def enter(self, call, module, args, kwargs):
        self.seen.append(call.name)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_checkpointing_runs_again_does_not_count(use_reentrant):
    model, counter = Checkpointed(use_reentrant), Counter()
    x = torch.randn(2, 4, requires_grad=True)
    ran = []
    model.layer.register_forward_pre_hook(lambda *_: ran.append(in_backward()))
    with HookSession(model, [counter], is_restoring=False):
        model(x).sum().backward()
        assert not in_backward()
    assert ran == [False, True]
    assert counter.seen == ["", "layer", "layer.0", "layer.1"]


def test_a_forward_after_a_backward_counts():
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    assert not in_backward()


@pytest.mark.parametrize("tensor", [
    torch.arange(6.0).reshape(2, 3).T,
    torch.tensor(3.0),
    torch.tensor([True, False]),
    torch.full((2,), torch.nan),
    torch.ones(3, dtype=torch.bfloat16),
    torch.ones(2, dtype=torch.complex64),
], ids=str)  # fmt: skip
def test_a_write_in_place_shows(tensor):
    tensor = tensor.clone()
    before = version_of(tensor)
    assert version_of(tensor) == before
    tensor.zero_()
    assert version_of(tensor) != before


def test_tensors_without_values_have_a_version():
    with torch.inference_mode():
        assert version_of(torch.ones(2)) == 0
    assert version_of(torch.empty(2, device="meta")) == 0
    assert version_of(torch.empty(0)) == 0


Pair = namedtuple("Pair", "left right")
NESTED = [
    (1, [2, {"a": 3, "b": (4, None)}]),
    OrderedDict(x=[1], y=deque([2, 3], maxlen=4)),
    defaultdict(list, {"k": [1, 2]}),
    Pair((1,), {"z": 2}),
    [],
    (),
    {},
    5,
]


@pytest.mark.parametrize("value", NESTED, ids=str)
def test_containers_are_taken_apart_and_put_together(value):
    assert map_leaves(value, lambda leaf: leaf) == value
    assert type(map_leaves(value, str)) is (type(value) if value != 5 else str)
    leaves = leaves_of(value)
    counted = iter(range(len(leaves)))
    assert leaves_of(map_leaves(value, lambda leaf: next(counted))) == list(range(len(leaves)))


def test_the_names_of_what_is_inside() -> None:
    children, _ = children_of(NESTED[3]) or ([], None)
    assert [name for name, _ in children] == ["left", "right"]


def test_a_string_and_a_set_are_not_entered():
    assert children_of("text") is None
    assert leaves_of({1, 2}) == [{1, 2}]
