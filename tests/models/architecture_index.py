"""Write the index by which a state dict is recognised: the tensors of every torchvision model.

    python tests/models/architecture_index.py

Each model is built on meta for two numbers of classes; what differs between them depends on the classes, and is
written as `n`, `4n`, `n+1`. Quantizable models are left out: their state dicts are those of the plain ones.
"""

from collections.abc import Iterator
from pathlib import Path

from torchvision.models import get_model_builder

import modelscope_cli.checkpoints
from modelscope_cli.models.names import model_names
from modelscope_cli.models.zoo import default_weights, zoo_architecture

FILE = Path(modelscope_cli.checkpoints.__file__).with_name("architectures.txt.xz")
N, M = 7, 12


def lines() -> Iterator[str]:
    """Yield a line with the name of each model, then one for each of its tensors: its name, its shape."""
    for name in model_names():
        if name.startswith("quantized_"):
            continue
        yield name
        architecture = zoo_architecture(name, default_weights(name), {}, 0).on_meta()
        takes_classes = architecture.takes_num_classes
        first, second = (architecture.build(n if takes_classes else None).state_dict() for n in (N, M))
        is_vit = get_model_builder(name).__module__.endswith(".vision_transformer")
        for key, tensor in first.items():
            if key.endswith("num_batches_tracked"):  # frozen batch norms have none
                continue
            pairs = zip(tensor.shape, second[key].shape, strict=True)
            shape = [dimension(*pair) for pair in pairs]
            if is_vit and key == "encoder.pos_embedding":
                shape[1] = "*"  # one for each patch, so by the size of the picture
            yield f" {key} {','.join(shape)}"


def dimension(for_n: int, for_m: int) -> str:
    factor, rest = divmod(for_m - for_n, M - N)
    assert rest == 0
    if factor == 0:
        return str(for_n)
    offset = for_n - factor * N
    return f"{factor if factor > 1 else ''}n{f'+{offset}' if offset else ''}"


def text() -> str:
    return "".join(f"{line}\n" for line in lines())


if __name__ == "__main__":
    import lzma

    FILE.write_bytes(lzma.compress(text().encode(), preset=9 | lzma.PRESET_EXTREME))
