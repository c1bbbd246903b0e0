"""What `summary --train` says that autograd keeps, against the storages that it really keeps on the CPU.

The real forward runs with values; `torch.autograd.graph.saved_tensors_hooks` shows every tensor that is saved, and
storages are counted once, without those of parameters and buffers. Nothing of the trace takes part in that.

    python tests/benchmarks/training_memory.py            every model
    python tests/benchmarks/training_memory.py 0          only the models with an even place in the list
    python tests/benchmarks/training_memory.py 1 --all    only those with an odd one; every line is printed
"""

import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from figure import Figure, n_of
from torch import Tensor, nn

Case = tuple[nn.Module, tuple[Any, ...]]
_WITHIN = 0.01


def measure(pairs: int | None) -> Iterator[Figure]:
    """Compare 64 models of four libraries, in float32 and under autocast."""
    for amp in (None, "bfloat16"):
        far = [name for name in MODELS if not _is_close(*compare(name, amp))]
        what = f"bytes saved for the backward pass within 1 %, {amp or 'float32'}"
        yield Figure(what, n_of(len(MODELS), far), f"{len(MODELS)} of {len(MODELS)}", not far)


def compare(name: str, amp: str | None) -> tuple[int, int, bool]:
    """Return the bytes that are predicted, the bytes that are saved, and whether the former needed no values."""
    from modelscope_cli.analysis.summary.memory import StepOptions
    from modelscope_cli.analysis.summary.training_steps import TrainingSteps

    torch.manual_seed(0)
    model, args = MODELS[name]()
    expected = saved_for_real(model, args, amp)
    steps = TrainingSteps(model, args, StepOptions("sgd", amp), lambda reason: (model, args))
    step = steps.run(StepOptions("sgd", amp), steps.batch)
    gc.collect()
    return step.saved_bytes, expected, step.is_fake


def _is_close(predicted: int, saved: int, _: bool) -> bool:
    return abs(predicted - saved) <= _WITHIN * saved


def saved_for_real(model: nn.Module, args: tuple[Any, ...], amp: str | None = None) -> int:
    """Return the bytes of the distinct storages that a real forward in train mode keeps for the backward."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage._cdata] = storage  # kept alive, so that no other gets its address
        return tensor

    model.train()
    autocast = torch.autocast("cpu", getattr(torch, amp or "bfloat16"), enabled=amp is not None)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), autocast:
        output = model(*args)
        n_bytes = sum(storage.nbytes() for storage in kept.values())
    del output
    return n_bytes


# --- the models: name -> a function that returns a module and its arguments

MODELS: dict[str, Callable[[], Case]] = {}


def _image(size: int = 224, batch: int = 2) -> Tensor:
    return torch.rand(batch, 3, size, size)


def _torchvision(name: str, *args: Tensor, **keywords: Any) -> Callable[[], Case]:
    def build() -> Case:
        import torchvision

        return torchvision.models.get_model(name, weights=None, **keywords), args or (_image(),)

    return build


def _timm(name: str, size: int = 224) -> Callable[[], Case]:
    def build() -> Case:
        import timm

        return timm.create_model(name, pretrained=False), (_image(size),)

    return build


class _Named(nn.Module):
    """Calls a model of transformers with its arguments by name."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *args: Tensor) -> Any:
        output = self.model(**dict(zip(self.names, args, strict=True)))
        return tuple(value for value in output.to_tuple() if isinstance(value, Tensor))


def _transformers(
    model: str, config: str, arguments: Callable[[], dict[str, Tensor]], **keywords: Any
) -> Callable[[], Case]:
    def build() -> Case:
        import transformers

        described = getattr(transformers, config)(**keywords)
        inputs = arguments()
        return _Named(getattr(transformers, model)(described), tuple(inputs)), tuple(inputs.values())

    return build


def _words(length: int = 48, most: int = 99) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, most, (2, length))}


def _padded(length: int = 48) -> dict[str, Tensor]:
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, length // 2 :] = 0
    return {**_words(length), "attention_mask": mask}


def _both(length: int = 24) -> dict[str, Tensor]:
    return {**_words(length), "decoder_input_ids": torch.randint(3, 99, (2, length // 2))}


def _pixels(size: int) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"pixel_values": _image(size)}


_TEXT = {
    "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 128,
}  # fmt: skip
_SEES = {"image_size": 64, "patch_size": 8, **{k: v for k, v in _TEXT.items() if k != "vocab_size"}}


def _detr() -> Case:
    import transformers

    backbone = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], out_features=["stage2"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=64,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=128, decoder_ffn_dim=128, num_queries=20,
    )  # fmt: skip
    return _Named(transformers.DetrModel(config), ("pixel_values",)), (_image(96),)


# --- plain nn


class Detr(nn.Module):
    """A DETR: a backbone, an encoder and a decoder, learnt queries, two heads."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            *(
                part
                for n, m in ((3, 16), (16, 32), (32, width))
                for part in (nn.Conv2d(n, m, 3, 2, 1), nn.BatchNorm2d(m), nn.ReLU(inplace=True))
            )
        )
        self.transformer = nn.Transformer(width, 4, 2, 2, 128, batch_first=True)
        self.queries = nn.Parameter(torch.rand(25, width))
        self.places = nn.Parameter(torch.rand(64, width))
        self.classes, self.boxes = nn.Linear(width, 11), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.backbone(x).flatten(2).transpose(1, 2) + self.places
        found = self.transformer(tokens, self.queries.expand(len(x), -1, -1))
        return self.classes(found), self.boxes(found).sigmoid()


class Attends(nn.Module):
    """One `nn.MultiheadAttention` with arguments of its call."""

    def __init__(self, width: int = 48, heads: int = 4, call: dict[str, Any] | None = None, **keywords: Any):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True, **keywords)
        self.fc = nn.Linear(width, 5)
        self.call = call or {}

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        key, value = others if others else (x, x)
        return self.fc(self.attention(x, key, value, **self.call)[0])


class Fused(nn.Module):
    """`scaled_dot_product_attention` of a shape and with arguments of any kind."""

    def __init__(self, heads: int, size: int, is_masked: bool = False, **keywords: Any) -> None:
        super().__init__()
        self.heads, self.size, self.is_masked, self.keywords = heads, size, is_masked, keywords
        self.qkv, self.out = nn.Linear(32, 3 * heads * size), nn.Linear(heads * size, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.size)).permute(2, 0, 3, 1, 4)
        n = x.shape[1]
        mask = torch.zeros(n, n, device=x.device, dtype=q.dtype) if self.is_masked else None
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.keywords)
        return self.out(y.transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    def __init__(self, kind: str, **keywords: Any) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(24, 32, batch_first=True, **keywords)
        sides = 2 if keywords.get("bidirectional") else 1
        self.fc = nn.Linear(sides * (keywords.get("proj_size") or 32), 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0][:, -1])


class Steps(nn.Module):
    """A recurrent cell in a loop."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell, self.fc = getattr(nn, kind)(24, 32), nn.Linear(32, 7)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for moment in x.unbind(1):
            state = self.cell(moment, state)
        return self.fc(state[0] if isinstance(state, tuple) else state)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = _pair(3, 16), _pair(16, 32)
        self.up, self.last = nn.ConvTranspose2d(32, 16, 2, 2), _pair(32, 16)
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        deep = self.deep(F.max_pool2d(skip, 2))
        return self.head(self.last(torch.cat([skip, self.up(deep)], 1)))


def _pair(n: int, m: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(n, m, 3, 1, 1), nn.GroupNorm(4, m), nn.SiLU(), nn.Dropout2d(0.1),
        nn.Conv2d(m, m, 3, 1, 1), nn.GELU(),
    )  # fmt: skip


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.Tanh())
        self.mean, self.spread = nn.Linear(64, 8), nn.Linear(64, 8)
        self.decode = nn.Sequential(nn.Linear(8, 64), nn.ELU(), nn.Linear(64, 768), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.encode(x)
        mean, spread = self.mean(hidden), self.spread(hidden).mul(0.5).exp()
        y = self.decode(mean + spread * torch.randn_like(spread))
        return y, mean.square() + spread.square() - spread.log()


class Words(nn.Module):
    """A text classifier: embeddings, a bag of them, a convolution over time."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.bag = nn.Embedding(100, 32), nn.EmbeddingBag(100, 32, mode="mean")
        self.conv, self.norm, self.fc = nn.Conv1d(32, 32, 3), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, ids: Tensor) -> Tensor:
        seen = F.relu(self.conv(self.one(ids).transpose(1, 2))).amax(2)
        return F.log_softmax(self.fc(self.norm(seen + self.bag(ids))), -1)


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3), nn.Hardswish()
        )  # fmt: skip
        self.fc = nn.Linear(8, 3)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x.contiguous(memory_format=torch.channels_last))
        return self.fc(y.flatten(2).transpose(1, 2)).softmax(-1)


def _encoder(layers: int = 3, **keywords: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True, **keywords)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class Causal(nn.Module):
    """A decoder whose two inputs are masked: the targets causally, the memory where it is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(48, 4, 96, batch_first=True), 2)

    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.decoder(x, memory, tgt_mask=mask, tgt_is_causal=True, memory_key_padding_mask=padding)


def _sequence(length: int = 40, width: int = 48) -> Tensor:
    return torch.rand(2, length, width)


def _plain(build: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Callable[[], Case]:
    return lambda: (build(), tuple(torch.rand(*shape) for shape in shapes))


MODELS |= {
    "torchvision resnet18": _torchvision("resnet18"),
    "torchvision vit_b_16": _torchvision("vit_b_16"),
    "torchvision swin_t": _torchvision("swin_t"),
    "torchvision swin_v2_t": _torchvision("swin_v2_t"),
    "torchvision maxvit_t": _torchvision("maxvit_t"),
    "torchvision convnext_tiny": _torchvision("convnext_tiny"),
    "torchvision densenet121": _torchvision("densenet121"),
    "torchvision googlenet": _torchvision("googlenet", init_weights=False),
    "torchvision mobilenet_v3_small": _torchvision("mobilenet_v3_small"),
    "torchvision efficientnet_b0": _torchvision("efficientnet_b0"),
    "torchvision regnet_y_400mf": _torchvision("regnet_y_400mf"),
    "torchvision shufflenet_v2_x0_5": _torchvision("shufflenet_v2_x0_5"),
    "torchvision deeplabv3_mobilenet": _torchvision("deeplabv3_mobilenet_v3_large", weights_backbone=None),
    "torchvision r3d_18": _torchvision("r3d_18", torch.rand(1, 3, 8, 64, 64)),
    "torchvision swin3d_t": _torchvision("swin3d_t", torch.rand(1, 3, 8, 64, 64)),
    "torchvision raft_small": _torchvision("raft_small", torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128)),
    "timm deit3_small_patch16_224": _timm("deit3_small_patch16_224"),
    "timm beit_base_patch16_224": _timm("beit_base_patch16_224"),
    "timm cait_xxs24_224": _timm("cait_xxs24_224"),
    "timm convnextv2_atto": _timm("convnextv2_atto"),
    "timm davit_tiny": _timm("davit_tiny"),
    "timm eva02_tiny_patch14_224": _timm("eva02_tiny_patch14_224"),
    "timm fastvit_t8": _timm("fastvit_t8"),
    "timm gcvit_xxtiny": _timm("gcvit_xxtiny"),
    "timm hiera_tiny_224": _timm("hiera_tiny_224"),
    "timm levit_128s": _timm("levit_128s"),
    "timm mobilevit_s": _timm("mobilevit_s", 256),
    "timm mvitv2_tiny": _timm("mvitv2_tiny"),
    "timm sequencer2d_s": _timm("sequencer2d_s"),
    "timm xcit_nano_12_p16_224": _timm("xcit_nano_12_p16_224"),
    "timm volo_d1_224": _timm("volo_d1_224"),
    "timm nfnet_l0": _timm("nfnet_l0"),
    "transformers ViTModel": _transformers("ViTModel", "ViTConfig", _pixels(64), **_SEES),
    "transformers BertModel": _transformers("BertModel", "BertConfig", _padded, **_TEXT),
    "transformers GPT2Model": _transformers(
        "GPT2Model", "GPT2Config", _words, vocab_size=100, n_embd=64, n_layer=3, n_head=4
    ),
    "transformers LlamaModel": _transformers("LlamaModel", "LlamaConfig", _padded, num_key_value_heads=2, **_TEXT),
    "transformers T5Model": _transformers(
        "T5Model", "T5Config", _both, vocab_size=100, d_model=64, d_ff=128, d_kv=16, num_layers=2, num_heads=4
    ),
    "transformers DetrModel": _detr,
    "transformers BartModel": _transformers(
        "BartModel", "BartConfig", _both, vocab_size=100, d_model=64, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128,
    ),
    "transformers Dinov2Model": _transformers(
        "Dinov2Model", "Dinov2Config", _pixels(64), image_size=64, patch_size=8, hidden_size=64,
        num_hidden_layers=3, num_attention_heads=4,
    ),
    "transformers SegformerModel": _transformers("SegformerModel", "SegformerConfig", _pixels(96)),
    "transformers SwinModel": _transformers(
        "SwinModel", "SwinConfig", _pixels(64), image_size=64, patch_size=4, embed_dim=24, depths=[2, 2],
        num_heads=[2, 4], window_size=4,
    ),
    "transformers ConvNextModel": _transformers(
        "ConvNextModel", "ConvNextConfig", _pixels(64), hidden_sizes=[16, 32], depths=[2, 2], num_stages=2
    ),
    "transformers BeitModel": _transformers("BeitModel", "BeitConfig", _pixels(64), **_SEES),
    "transformers ElectraModel": _transformers("ElectraModel", "ElectraConfig", _padded, **_TEXT),
    "transformers WhisperModel": _transformers(
        "WhisperModel", "WhisperConfig",
        lambda: {"input_features": torch.rand(2, 80, 200), "decoder_input_ids": torch.randint(3, 99, (2, 12))},
        vocab_size=100, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_source_positions=100,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    ),
    "transformers MambaModel": _transformers(
        "MambaModel", "MambaConfig", _words, vocab_size=100, hidden_size=32, num_hidden_layers=2, state_size=8
    ),
    "transformers MixtralModel": _transformers(
        "MixtralModel", "MixtralConfig", _words, num_key_value_heads=2, num_local_experts=4, **_TEXT
    ),
    "nn DETR": _plain(Detr, (2, 3, 64, 64)),
    "nn TransformerEncoder": _plain(_encoder, (2, 40, 48)),
    "nn TransformerEncoder norm first": _plain(lambda: _encoder(norm_first=True, dropout=0.0), (2, 40, 48)),
    "nn Transformer": _plain(
        lambda: nn.Transformer(48, 4, 2, 2, 96, activation="gelu", batch_first=True), (2, 40, 48), (2, 20, 48)
    ),
    "nn TransformerDecoder causal": lambda: (
        Causal(), (_sequence(20), _sequence(40), torch.arange(40).expand(2, -1) > 30)
    ),
    "nn MultiheadAttention without weights": _plain(
        lambda: Attends(call={"need_weights": False}, dropout=0.1), (2, 40, 48)
    ),
    "nn MultiheadAttention with weights": _plain(Attends, (2, 40, 48)),
    "nn MultiheadAttention across": _plain(
        lambda: Attends(call={"need_weights": False}, kdim=20, vdim=28), (2, 40, 48), (2, 30, 20), (2, 30, 28)
    ),
    "nn attention of odd heads": _plain(lambda: Fused(3, 13), (2, 40, 32)),
    "nn attention causal": _plain(lambda: Fused(4, 16, is_causal=True), (2, 40, 32)),
    "nn attention masked": _plain(lambda: Fused(4, 16, is_masked=True), (2, 40, 32)),
    "nn attention with dropout": _plain(lambda: Fused(4, 16, dropout_p=0.2), (2, 40, 32)),
    "nn LSTM": _plain(lambda: Recurrent("LSTM"), (2, 30, 24)),
    "nn LSTM of two layers and directions": _plain(
        lambda: Recurrent("LSTM", num_layers=2, bidirectional=True, dropout=0.2), (2, 30, 24)
    ),
    "nn LSTM projected": _plain(lambda: Recurrent("LSTM", proj_size=16), (2, 30, 24)),
    "nn GRU": _plain(lambda: Recurrent("GRU", num_layers=2), (2, 30, 24)),
    "nn RNN": _plain(lambda: Recurrent("RNN", bidirectional=True), (2, 30, 24)),
    "nn LSTMCell": _plain(lambda: Steps("LSTMCell"), (2, 30, 24)),
    "nn GRUCell": _plain(lambda: Steps("GRUCell"), (2, 30, 24)),
    "nn U-Net": _plain(UNet, (2, 3, 64, 64)),
    "nn variational autoencoder": _plain(Vae, (4, 3, 16, 16)),
    "nn embeddings": lambda: (Words(), (torch.randint(0, 100, (4, 30)),)),
    "nn channels last": _plain(ChannelsLast, (4, 3, 32, 32)),
}  # fmt: skip


def main() -> int:
    sides = [int(word) for word in sys.argv[1:] if word.isdigit()]
    words = [word for word in sys.argv[1:] if not word.isdigit() and word != "--all"]
    n_far = 0
    for place, name in enumerate(MODELS):
        if (sides and place % 2 not in sides) or not all(word in name for word in words):
            continue
        for amp in (None, "bfloat16"):
            begin = time.monotonic()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    predicted, saved, is_fake = compare(name, amp)
                except Exception as error:
                    print(f"{name} {amp}: {type(error).__name__} {str(error)[:200]}", flush=True)
                    n_far += 1
                    continue
            is_close = _is_close(predicted, saved, is_fake)
            n_far += not is_close
            if not is_close or "--all" in sys.argv:
                how = "" if is_fake else " with values"
                print(
                    f"{name} {amp or 'float32'}: {predicted:,} / {saved:,} = {predicted / saved:.4f}{how}"
                    f" {time.monotonic() - begin:.1f} s",
                    flush=True,
                )
    return n_far


if __name__ == "__main__":
    sys.path.insert(0, str(__import__("pathlib").Path(__file__).parents[2]))
    sys.exit(main())
