"""What `grads` refuses: what is typed -> exit code, what the error quotes, what the hint says to run."""

import pytest

TABLE = [
    # the loss and its target
    ("{tiny} --loss entropy", 2, "unknown loss 'entropy': did you mean cross-entropy", "did you mean cross-"),
    ("{tiny} -t 10", 2, "target 10 is out of range: the classes are 0..9", "--target 9"),
    ("{tiny} -t -1", 2, "target -1 is out of range: the classes are 0..9", "--target 9"),
    ("{tiny} -t star", 2, "'star' is not a class index, and the labels of this model", "--target 0"),
    ("{squeezenet} -t sta", 2, "unknown target 'sta': the classes are circle", "--target star"),
    ("-m resnet18 -w none -t dog", 2, "unknown target 'dog': did you mean Maltese dog", "--target 'Maltese dog'"),
    ("{tiny} --loss mean -t 1", 2, "'--target 1' has no meaning for the loss 'mean'", "leave out"),
    ("{tiny} --loss nll", 2, "'nll' needs log-probabilities", "--loss cross-entropy"),
    ("-m broken.py:Regression --loss bce", 2, "needs an output of N x classes", "--loss mean or"),
    ("-m broken.py:Regression --label-smoothing 0.1", 2, "'--label-smoothing'", "leave out --label"),
    ("{tiny} --label-smoothing 2", 2, "'--label-smoothing 2' is too large: the most is 1", "--label-smoothing 0"),
    ("{tiny} --loss mse --label-smoothing 0.1", 2, "not to 'mse'", "--loss cross-entropy"),
    ("{tiny} --weight-decay -1", 2, "'--weight-decay -1' is too small: the least is 0", "--weight-decay 0"),
    ("{tiny} --weight-decay nan", 2, "'--weight-decay nan' is not a finite number", "--weight-decay 0"),
    ("{tiny} --loss broken.py:nothing", 2, "has no attribute 'nothing'", "broken.py:"),
    ("{tiny} --loss missing.py:fn", 4, "'missing.py'", "ls ."),
    ("{tiny} --loss broken.py:unlucky", 4, "raised ValueError: no luck today", "python "),
    ("{tiny} --batch 2 --loss broken.py:vector", 4, "a tensor of (2,), not a scalar", "loss.mean()"),
    ("{tiny} --loss broken.py:number", 4, "returned a float, not a scalar", "loss.mean()"),
    ("{tiny} --loss broken.py:detached", 4, "a number without a graph", "made of the output"),
    # clipping, marks, tables
    *(
        (f"{{tiny}} {option} {value}", 2, f"'{option} {value}' is not more than 0", f"{option} 1")
        for option in ("--clip", "--clip-norm")
        for value in (-1, 0)
    ),
    *(
        (f"{{tiny}} {option} {value}", 2, f"'{option} {value}' is not a finite number", f"{option} 1")
        for option in ("--clip", "--clip-norm")
        for value in ("inf", "nan")
    ),
    ("{tiny} --clip 1 --clip-norm 1", 2, "'--clip 1' and '--clip-norm 1'", "leave out --clip-norm"),
    ("{tiny} --table losses", 2, "'losses'", "try parameters, activations, batch-norm"),
    ("{tiny} --table batch-norm", 2, "'--table batch-norm'", "--mode train"),
    ("{tiny} --table activations --columns ratio", 2, "'ratio' in --columns", "--columns name,"),
    # what is trained
    ("{tiny} --freeze nothing", 2, "'nothing' matches no layer", "types present"),
    ("{tiny} --train-only nothing", 2, "'nothing' matches no layer", "types present"),
    ("{tiny} --freeze type:ReLU", 2, "'--freeze type:ReLU' matches only layers without", "modelscope"),
    ("{tiny} --freeze conv@1", 2, "'conv@1' names calls", "try conv"),
    ("{tiny} --freeze '*'", 2, "nothing left to train", "leave out --freeze"),
    ("-m broken.py:Frozen", 4, "every parameter of the model is frozen", "--train-only '*'"),
    ("-m broken.py:Bare", 4, "the model has no parameters", "modelscope stats"),
    # what cannot be differentiated
    ("-m broken.py:NoGrad", 4, "its forward runs under no_grad", "modelscope stats"),
    ("-m broken.py:Argmax", 4, "tensors of int64, which cannot be differentiated", "modelscope stats"),
    ("-m broken.py:OneWay", 4, "backward raised NotImplementedError: no way back", "modelscope stats"),
    ("-m broken.py:quantized --input-shape 1,3,64,64", 4, "is quantized: integers", "before it is quantized"),
    ("-m ssdlite320_mobilenet_v3_large --batch 1", 4, "more than 1 value per channel", "--batch 2"),
    ("-m ssdlite320_mobilenet_v3_large --mode eval", 2, "returns boxes, not a loss", "--mode train"),
]  # fmt: skip

BROKEN = """
import warnings
import torch
from torch import nn

class Regression(nn.Linear):
    def __init__(self):
        super().__init__(4, 1)

class Frozen(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        self.requires_grad_(False)

class Bare(nn.Sequential):
    def __init__(self):
        super().__init__(nn.ReLU(), nn.Flatten())

class NoGrad(Regression):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)

class Argmax(Regression):
    def forward(self, x):
        return super().forward(x).argmax(1)

class NoWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError('no way back')

class OneWay(Regression):
    def forward(self, x):
        return NoWayBack.apply(super().forward(x))

def quantized():
    from torchvision.models.quantization import resnet18
    with warnings.catch_warnings(action="ignore"):
        return resnet18(weights=None, quantize=True)

def unlucky(output): raise ValueError('no luck today')
def vector(output): return output.sum(1)
def number(output): return 3.0
def detached(output): return output.detach().sum()
"""


@pytest.mark.parametrize(("arguments", "code", "quoted", "hint"), TABLE, ids=[row[0] for row in TABLE])
def test_what_grads_refuses(refused, cwd, arguments, code, quoted, hint):
    (cwd / "broken.py").write_text(BROKEN)
    message, suggested = refused(f"grads {arguments} --out result", code)
    assert quoted in message
    assert hint in suggested
    assert [path.name for path in cwd.iterdir() if path.name != "__pycache__"] == ["broken.py"]
