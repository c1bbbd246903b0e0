"""What to do about the usual errors of torch that end a training."""

import re
from traceback import walk_tb
from typing import Any

from torch import Tensor

from modelscope_cli.source_location import is_own, walk_named

_AGAIN = "backward through the graph a second time"
# Variables that carry a state from one batch to the next
_STATE = re.compile(
    r"(?i)(^|[._])(h|c|hx|cx|hc|h_?\d|c_?\d|h_?n|c_?n|hid(den)?s?|(\w+_)?(state|hidden|memory|carry)s?)$"
)
_DEPTH = 2  # `model.encoder.hidden`
# By a part of an error
_ADVICE = {
    r"Expected hidden\[0\] size": "begin a batch of a new size with a new state, or set drop_last=True in the "
    "DataLoader",
    r"modified by an inplace operation": "write y = y + 1, not y += 1 or y.add_(1); nn.ReLU() without inplace=True;"
    " and optimizer.step() after the last backward(). torch.autograd.set_detect_anomaly(True) names the line",
    r"leaf Variable that requires grad .* in-place": "change a weight inside `with torch.no_grad():`",
    r"target dtype to be Long|not implemented for 'Int'": "give the indices of the classes: labels.long()",
    r"dtype (Long|Double|Int) but expected Float|desired output type Long": "targets.float()",
    r"scalar types: Long, Int": "tokens.long(): an embedding takes indices",
    r"must have the same dtype, but got|\) and (bias|weight) type \(\w+\) should be the same": "give the input the "
    "dtype of the weights: x.float(), or x.float() / 255 for images of bytes; or compute inside torch.autocast",
    r"on the same device|not on the expected device|and weight type \(torch\.cuda": "model.to(device) before its "
    "optimizer is made; x.to(device) for each batch, and torch.zeros(..., device=x.device) for new tensors",
    r"Tried to step \d+ times": "total_steps is the number of calls of scheduler.step(): epochs * len(loader) if "
    "each batch calls it",
    r"Target 255 is out of bounds": "cross_entropy(..., ignore_index=255) if 255 marks pixels without a label; "
    "(mask > 0).long() for masks of 0 and 255",
    r"Target -?\d+ is out of bounds": "labels are 0 to C-1 for C outputs: enlarge the last layer, or count labels "
    "from 0",
    r"index out of range in self": "set num_embeddings above the highest index",
    r"multi-target not supported": "labels.squeeze(1), or labels.argmax(1) if they are one-hot",
    r"Expected target size": "classes are dimension 1: logits.transpose(1, 2); or logits.flatten(0, 1) and "
    "targets.flatten()",
    r"Target size .* must be the same as input size": "logits.squeeze(1), or targets.unsqueeze(1)",
    r"does not require grad and does not have a grad_fn": "compute the loss from the output of a model with "
    "trainable weights, without torch.no_grad(), .detach(), .item() or argmax in between",
    r"only for scalar outputs": "loss.mean().backward()",
    r"more than 1 value per channel when training": "drop_last=True in the DataLoader; model.eval() for single "
    "samples",
    r"elements of input should be between 0 and 1": "binary_cross_entropy_with_logits, without a sigmoid; if the "
    "output is NaN, a lower learning rate",
    r"No inf checks were recorded|since the last update": "after each backward(): scaler.step(optimizer), not "
    "optimizer.step(), then scaler.update()",
    r"empty parameter list": "register the layers: nn.ModuleList([...]), not a list",
}


def advice_for(error: BaseException) -> str | None:
    """Return what to do about an error, with the variable that carries a state; None where that is not known."""
    text = str(error)
    if _AGAIN in text:
        return _on_state(error)
    return next((words for part, words in _ADVICE.items() if re.search(part, text)), None)


def _on_state(error: BaseException) -> str:
    """Name the variables that keep the graph of the batch before, if their names say that they are states."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if is_own(frame.f_code.co_filename)]
    carried: dict[str, Any] = {}
    for _, name, value in walk_named(list(frames[-1].f_locals.items()) if frames else (), _DEPTH):
        if _STATE.search(name) and "[" not in name and _has_graph(value):
            carried.setdefault(name, value)
    if not carried:
        return (
            "detach what is kept from the previous batch, such as the state of a recurrent layer: state = "
            "state.detach(); or add up the losses that share a graph, and call backward() once"
        )
    lines = [
        f"{name} = {name}.detach()"
        if isinstance(value, Tensor)
        else f"{name} = tuple(s.detach() for s in {name})"
        for name, value in carried.items()
    ]
    return f"detach the state left by the previous batch: {'; '.join(lines)}"


def _has_graph(value: Any) -> bool:
    several = value if isinstance(value, tuple | list) else (value,)
    return any(isinstance(one, Tensor) and one.grad_fn is not None for one in several)
