"""`modelscope lrfind`: the contract, the proof, and batches of one's own."""

LOADERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def loaders():
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(64, 3, 32, 32, generator=generator), torch.arange(64) % 10)
    return DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=64)
"""


def test_a_loss_that_is_nan_from_the_first_step_suggests_nothing(run, cwd):
    text = LOADERS.replace(
        "torch.randn(64, 3, 32, 32, generator=generator)", "torch.full((64, 3, 32, 32), float('nan'))"
    )
    (cwd / "mine.py").write_text(text)
    outcome = run("lrfind --model {TINY} --loaders mine.py:loaders --json")
    document = outcome.json
    assert document["stopped"] == "the loss was not finite at step 0"
    assert document["suggestion"] == {"steepest": None, "valley": None, "minimum": None}
    assert document["loss"] == [None]
    assert document["restored"]["buffers"]
