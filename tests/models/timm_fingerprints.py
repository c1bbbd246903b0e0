"""Write the index by which a state dict of timm's is recognised: a fingerprint of the tensors of every model.

    python tests/models/timm_fingerprints.py

Each model is built on meta for two numbers of classes; what differs between them is its head. The first line holds
the names of all tensors of heads, each other line a fingerprint and the models that have it, the shortest name
first.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import timm

import modelscope_cli.checkpoints
from modelscope_cli.checkpoints.identify import fingerprint
from modelscope_cli.models.architecture import on_meta
from modelscope_cli.records.run import Shape

FILE = Path(modelscope_cli.checkpoints.__file__).with_name("timm_architectures.txt.xz")
N, M = 7, 12


def shapes_of(name: str, num_classes: int | None = None) -> dict[str, Shape]:
    """Return the tensors of a model, as a checkpoint of it is compared with them."""
    classes = {} if num_classes is None else {"num_classes": num_classes}
    with on_meta():
        state = timm.create_model(name, **classes).state_dict()
    return {key: tuple(t.shape) for key, t in state.items() if not key.endswith("num_batches_tracked")}


def text(names: Iterable[str]) -> str:
    """Return the index of these models."""
    shapes, heads = {}, set()
    for name in names:
        shapes[name], other = shapes_of(name, N), shapes_of(name, M)
        heads |= {key for key, shape in shapes[name].items() if shape != other[key]}
    same = defaultdict(list)
    for name in sorted(shapes, key=lambda name: (len(name), name)):
        same[fingerprint(shapes[name], heads)].append(name)
    rows = sorted((*models, key) for key, models in same.items())
    return "\n".join([" ".join(sorted(heads)), *(" ".join((key, *models)) for *models, key in rows), ""])


if __name__ == "__main__":
    import lzma

    FILE.write_bytes(lzma.compress(text(timm.list_models()).encode(), preset=9 | lzma.PRESET_EXTREME))
