"""Values that B has in another tensor, in another order or scaled: `diff` tells, and its line undoes it."""

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.analysis.comparison.compare import diff_tensors
from modelscope_cli.analysis.comparison.relation import relations


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(24, 24) for _ in range(3))
        self.norm1, self.norm2 = nn.BatchNorm1d(24), nn.BatchNorm1d(24)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(24, 5)


def state():
    random = torch.Generator().manual_seed(0)
    every = Net().state_dict().items()
    return {k: torch.rand(v.shape, generator=random) - 0.4 if v.is_floating_point() else v for k, v in every}


A = state()
ORDER = torch.randperm(24, generator=torch.Generator().manual_seed(1))


def having(places):
    """Return A with the values of other layers: `{layer: the one whose values it gets}`."""
    found = dict(A)
    for layer, source in places.items():
        found |= {k: A[source + k[len(layer) :]] for k in A if f"{k}.".startswith(f"{layer}.")}
    return found


def changed(name, change):
    return A | {name: change(A[name])}


CASES = {
    "norms": (having({"blocks.0.norm1": "blocks.0.norm2", "blocks.0.norm2": "blocks.0.norm1"}),
              "the values of blocks.0.norm1 and blocks.0.norm2 are exchanged"),
    "blocks": (having({"blocks.0": "blocks.2", "blocks.2": "blocks.0"}),
               "the values of blocks.0.q and blocks.2.q are exchanged, the values of blocks.0.k and blocks.2.k"),
    "circle": (having({"blocks.1.q": "blocks.1.k", "blocks.1.k": "blocks.1.v", "blocks.1.v": "blocks.1.q"}),
               "blocks.1.q of B has the values of blocks.1.k, blocks.1.k of B has the values of blocks.1.v, "
               "blocks.1.v of B has the values of blocks.1.q"),
    "one tensor": (having({"blocks.1.q.weight": "blocks.1.k.weight", "blocks.1.k.weight": "blocks.1.q.weight"}),
                   "the values of blocks.1.q.weight and blocks.1.k.weight are exchanged"),
    "prefix": ({f"module.{k}": v for k, v in
                having({"blocks.1.q": "blocks.1.k", "blocks.1.k": "blocks.1.q"}).items()},
               "the values of blocks.1.q and blocks.1.k are exchanged"),
    "copy": (having({"blocks.1.norm1": "blocks.0.norm1"}),
             "blocks.1.norm1 of B has the values of blocks.0.norm1"),
    "transposed": (changed("blocks.0.q.weight", lambda v: v.T),
                   "blocks.0.q.weight: B has the values of A transposed"),
    "axes": (changed("stem.weight", lambda v: v.permute(2, 3, 1, 0)),
             "stem.weight: B has the values of A with the axes in the order 2, 3, 1, 0"),
    "flat": (changed("stem.weight", lambda v: v.flatten(1)), "B has the values of A in the shape 24x27"),
    "colours": (changed("stem.weight", lambda v: v.flip(1)),
                "with the parts along axis 1 in a different order, [2, 1, 0], as of RGB and BGR"),
    "classes": (A | {k: A[k][[2, 0, 1, 4, 3]] for k in ("head.weight", "head.bias")},
                "head.bias: B has the values of A with the rows in a different order, [2, 0, 1, 4, 3]"),
    "columns": (changed("head.weight", lambda v: v[:, ORDER]), "with the columns in a different order"),
    "parts": (changed("blocks.2.k.weight", lambda v: torch.cat([*v.chunk(3)[1:], v.chunk(3)[0]])),
              "with the rows in a different order"),
    "factor": (changed("stem.weight", lambda v: 2 * v), "stem.weight: B has the values of A times 2"),
    "factors": (changed("stem.weight", lambda v: v * torch.linspace(1, 2, 24).view(-1, 1, 1, 1)),
                "times a factor for each row, 1 to 2"),
    "shrunk": (changed("stem.weight", lambda v: v * torch.linspace(0.1, 1, 24).view(-1, 1, 1, 1)),
               "times a factor for each row, 0.1 to 1"),
}  # fmt: skip
PROVED_BY_ALL_DIGITS = ("factor", "factors", "shrunk")


@pytest.mark.parametrize(
    ("name", "is_half"),
    [(name, False) for name in CASES] + [(name, True) for name in CASES if name not in PROVED_BY_ALL_DIGITS],
)
def test_it_is_told_and_undone(name, is_half):
    b, text = CASES[name]
    b = {k: v.half() if v.is_floating_point() else v for k, v in b.items()} if is_half else dict(b)
    rows, _, _ = diff_tensors(A, b)
    causes = [*relations(rows, A, b)]
    assert text in causes[0].message
    lines = [one.hint.partition("   ")[0] for one in causes if one.hint.startswith("b |=")]
    assert len(lines) == (name not in ("copy", "columns", "parts", "factors", "shrunk"))
    for line in lines:
        exec(line, {"a": A, "b": b, "torch": torch})
        rows, _, _ = diff_tensors(A, b, 1e-2 if is_half else 1e-6)
        assert {row.status for row in rows} <= {"same", "renamed"}


def test_constants_and_other_values_say_nothing():
    norms = [f"blocks.{n}.norm{m}.weight" for n in range(3) for m in (1, 2)]
    ones = A | {name: torch.ones(24) for name in norms[:3]} | {norms[3]: torch.zeros(24)}
    swapped = ones | {norms[3]: ones[norms[0]], norms[0]: ones[norms[3]]}
    noise = {k: v + 0.01 * torch.randn(v.shape) if v.ndim else v for k, v in A.items()}
    step = {k: v * (1 + 1e-5 * torch.rand(v.shape)) if v.ndim else v for k, v in A.items()}
    zeros = {k: v * 0 for k, v in A.items()}
    signs = {k: v.sign() for k, v in A.items()}
    for a, b in (
        (ones, swapped),
        (A, ones),
        (A, noise),
        (A, step),
        (A, zeros),
        (signs, signs | {norms[0]: -signs[norms[0]].flip(0)}),
    ):
        rows, _, _ = diff_tensors(a, b)
        assert not {one.kind for one in relations(rows, a, b)} & {
            "exchanged",
            "copied",
            "reordered",
            "scaled",
            "joined",
        }


def test_the_layers_that_are_exchanged_are_named_of_a_run_too():
    a, b = Block().eval(), Block().eval()
    b.load_state_dict(a.state_dict() | {f"q.{x}": getattr(a.k, x) for x in ("weight", "bias")})
    a.forward = lambda x: a.k(a.q(x))
    b.forward = lambda x: b.k(b.q(x))
    cause, _ = ms.diff(a, b, torch.randn(2, 24)).causes
    assert cause.message == "q of B has the values of k"
