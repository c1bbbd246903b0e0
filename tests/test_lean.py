"""Each in a process of its own: what is imported once cannot be taken back."""

import subprocess
import sys

import pytest
import torch
import warm
from samples_of_results import SAMPLES

from modelscope_cli.models.architecture import SkipRandomFills, on_meta

PREAMBLE = """
import sys, warnings
import torch
warnings.simplefilter("error")
heavy = {"torch._dynamo", "torch._dynamo.utils", "sympy", "torch.fx.experimental.symbolic_shapes"}
if heavy & set(sys.modules):
    print("torch imports them itself"), sys.exit(0)
from modelscope_cli.lean import lean_imports, without_dynamo
from modelscope_cli.models.architecture import SkipRandomFills
shell = lean_imports()
shell.__enter__()
"""


def run(script: str) -> None:
    done = warm.run("-c", PREAMBLE + script, imported=warm.TORCH)
    assert done.returncode == 0, done.stderr


def test_a_forward_on_meta_imports_neither_dynamo_nor_sympy() -> None:
    run("""
with without_dynamo():
    import torchvision.models
    from torch.utils.flop_counter import FlopCounterMode
    with torch.device("meta"), SkipRandomFills():
        model = torchvision.models.resnet34().eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, 224, 224, device="meta"))
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert "_dynamo" not in vars(torch)
# 3.66 GMACs, torchvision's published `_ops`
assert round(counter.get_total_flops() / 2e9, 3) == torchvision.models.ResNet34_Weights.DEFAULT.meta["_ops"]
""")


def test_the_real_modules_work_afterwards_and_are_not_replaced() -> None:
    run("""
with without_dynamo():
    import torchvision
    from torch.utils.flop_counter import FlopCounterMode
    with FlopCounterMode(display=False):
        torch.nn.Linear(2, 2, device="meta")(torch.empty(1, 2, device="meta"))
boxes = [torch.tensor([[0.0, 0.0, 4.0, 4.0]])]
assert torchvision.ops.roi_align(torch.ones(1, 1, 8, 8), boxes, 2).sum() == 4
import torch._dynamo
real = torch._dynamo
assert real.__file__
with without_dynamo():
    assert sys.modules["torch._dynamo"] is real
assert torch._dynamo is real
compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
assert torch.equal(compiled(torch.zeros(3)), torch.ones(3))
with FlopCounterMode(display=False) as counter:
    torch.mm(torch.ones(2, 2), torch.ones(2, 2))
assert counter.get_total_flops() == 16
""")


def test_the_stubs_go_after_an_exception() -> None:
    run("""
try:
    with without_dynamo():
        assert heavy <= set(sys.modules)
        raise KeyError
except KeyError:
    pass
assert not heavy & set(sys.modules)
""")


def test_the_test_for_heavy_imports_can_fail() -> None:
    with pytest.raises(AssertionError):
        run("import sympy; assert not heavy & set(sys.modules)")


def test_random_fills_are_skipped_and_others_are_not() -> None:
    with SkipRandomFills():
        filled = [
            torch.zeros(3).normal_(),
            torch.zeros(3).uniform_(1, 2),
            torch.nn.init.normal_(torch.zeros(3)),
            torch.nn.init.uniform_(tensor=torch.zeros(3)),
            torch.nn.init.trunc_normal_(torch.zeros(3), std=0.1),
            torch.nn.init.kaiming_uniform_(torch.zeros(3, 3)),
        ]
        assert not torch.cat([tensor.flatten() for tensor in filled]).any()
        assert torch.nn.init.constant_(torch.zeros(2), 7).tolist() == [7, 7]
        assert torch.nn.BatchNorm2d(2).weight.tolist() == [1, 1]


def test_values_that_constructors_read_stay_on_the_cpu() -> None:
    with on_meta():
        assert torch.linspace(0, 1, 3).tolist() == [0, 0.5, 1]
        assert torch.arange(2, device="meta").is_meta
        assert torch.nn.Conv2d(3, 4, 3).weight.is_meta


@pytest.mark.parametrize(
    "line",
    [
        "summary resnet18",
        "stats -m resnet18 -w none --input-shape 1,3,32,32",
        *(
            f"{command} -m resnet18 -w none --input-shape 1,3,32,32 --no-save"
            for command in ("grads", "explain")
        ),
    ],
)
def test_no_command_on_a_torchvision_model_imports_dynamo(line: str) -> None:
    code = "import sys; from modelscope_cli.shell.app import run; assert not run(sys.argv[1:])"
    code += "; sys.exit(bool({'torch._dynamo', 'sympy'} & set(sys.modules)))"
    assert warm.run("-c", code, *line.split(), "--quiet", imported=warm.TORCH).returncode == 0


def test_the_stand_ins_are_for_the_shell_alone() -> None:
    run("""
shell.__exit__(None, None, None)
before = set(sys.modules)
with without_dynamo():
    assert set(sys.modules) == before
""")


def test_the_stand_ins_can_be_switched_off() -> None:
    run("""
import os
os.environ["MSCOPE_LEAN"] = "0"
with lean_imports(), without_dynamo():
    assert not heavy & set(sys.modules)
with without_dynamo():  # switched off within only
    assert heavy <= set(sys.modules)
""")


# Whoever opened the stand-ins would call this, whatever is loaded by then.
NO_STAND_IN = """
from modelscope_cli import lean
lean._StandIn, lean._SERVED = None, {"a module that nobody loads": {}}
"""


def test_public_functions_never_install_a_stand_in() -> None:
    run(f"""
shell.__exit__(None, None, None)
import modelscope_cli as ms
{NO_STAND_IN}
ms.summary("squeezenet1_1")
ms.load("squeezenet1_1", weights="none")
ms.stats(torch.nn.Conv2d(3, 4, 3), torch.ones(1, 3, 8, 8))
""")


def test_the_test_for_stand_ins_can_fail() -> None:
    with pytest.raises(AssertionError, match="not callable"):
        run(f"{NO_STAND_IN}\nfrom modelscope_cli.models import zoo")


@pytest.mark.parametrize(
    "script", ["import modelscope_cli", "import modelscope_cli as ms; dir(ms), ms.__version__"]
)
def test_importing_the_package_costs_nothing(script: str) -> None:
    code = f"import sys; before = set(sys.modules); {script}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["modelscope_cli"]


@pytest.mark.slow
def test_a_model_of_a_file_is_built_on_meta_in_a_new_process() -> None:
    command = [sys.executable, "-m", "modelscope_cli", "summary", f"{SAMPLES}/tiny_resnet.py:TinyResNet"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "not built on the meta device" not in done.stderr


def test_garbage_of_a_command_is_collected_as_usual_from_the_model_on() -> None:
    run("""
import gc
from modelscope_cli.lean import collect_new_garbage
shell.__exit__(None, None, None)
gc.unfreeze()  # what the process that this one is a copy of has frozen
usual = gc.get_threshold()
with lean_imports():
    assert gc.get_threshold()[0] == 100_000
    collect_new_garbage()
    assert gc.get_threshold() == usual and gc.get_freeze_count() > 0
assert gc.get_threshold() == usual and gc.get_freeze_count() == 0
collect_new_garbage()  # outside a command line everything stays as its owner has it
assert gc.get_freeze_count() == 0
""")
