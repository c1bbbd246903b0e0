"""Models that take more than an image: the inputs that are filled in, and texts to compare."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.forward_signature import suggestion
from modelscope_cli.inputs.named_noise import natural_named

transformers = pytest.importorskip("transformers")
VISION = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 48, "image_size": 32, "patch_size": 8},
}
TEXT = {
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2},
    **{"intermediate_size": 48, "vocab_size": 120, "max_position_embeddings": 64},
}
QWEN_VISION = {
    **{"embed_dim": 32, "hidden_size": 32, "depth": 1, "num_heads": 2, "patch_size": 8, "mlp_ratio": 2},
    **{"spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3},
}
MROPE = {"rope_parameters": {"type": "mrope", "mrope_section": [2, 3, 3], "rope_type": "default"}}


def llama(**more: Any) -> Any:
    return transformers.LlamaConfig(**TEXT, **more)


def clip() -> Any:
    config = transformers.CLIPConfig(
        text_config={**TEXT, "eos_token_id": 2}, vision_config=VISION, projection_dim=16
    )
    return transformers.CLIPModel(config)


def blip() -> Any:
    text = {**TEXT, "encoder_hidden_size": 32, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
    config = transformers.BlipConfig(text_config={**text, "pad_token_id": 0}, vision_config=VISION)
    return transformers.BlipForConditionalGeneration(config)


def siglip2() -> Any:
    vision = {**VISION, "num_patches": 16}
    config = transformers.Siglip2Config(text_config={**TEXT, "projection_size": 32}, vision_config=vision)
    return transformers.Siglip2Model(config)


def llava() -> Any:
    vision = transformers.CLIPVisionConfig(**VISION)
    config = transformers.LlavaConfig(vision_config=vision, text_config=llama(), image_token_index=100)
    return transformers.LlavaForConditionalGeneration(config)


def qwen() -> Any:
    config = transformers.Qwen2VLConfig(
        vision_config=QWEN_VISION,
        text_config={**TEXT, **MROPE},
        image_token_id=100,
        video_token_id=101,
        vision_start_token_id=102,
        vision_end_token_id=103,
    )
    return transformers.Qwen2VLForConditionalGeneration(config)


def idefics() -> Any:
    config = transformers.Idefics3Config(
        vision_config=VISION, text_config=llama(pad_token_id=0), image_token_id=100, scale_factor=2
    )
    return transformers.Idefics3ForConditionalGeneration(config)


def paligemma() -> Any:
    config = transformers.PaliGemmaConfig(
        vision_config=transformers.SiglipVisionConfig(**VISION, projection_dim=32),
        text_config=transformers.GemmaConfig(**TEXT, head_dim=16),
        image_token_index=100,
        projection_dim=32,
    )
    return transformers.PaliGemmaForConditionalGeneration(config)


# The image tokens: 16 patches, 16 x 16 merged by 2 x 2, 16 shuffled by 2 x 2.
MODELS = [(clip, 0), (blip, 0), (siglip2, 0), (llava, 16), (qwen, 64), (idefics, 4), (paligemma, 16)]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    Image.effect_noise((40, 40), 60).convert("RGB").save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.mark.parametrize(("build", "n_tokens"), MODELS)
def test_text_and_image_tokens_are_filled_in(build: Any, n_tokens: int, photo: Path) -> None:
    torch.manual_seed(0)
    model = build().eval()
    named = natural_named(model, 2)
    assert named is not None
    assert named["input_ids"].row == (100,) * n_tokens
    assert ms.summary(model).totals.params == sum(p.numel() for p in model.parameters())
    assert ms.stats(model).layers
    if build is qwen:
        with pytest.raises(CannotRunError, match="image patches"):
            ms.stats(model, photo)
    elif build is not siglip2:  # whose processor cuts patches, too
        assert ms.stats(model, [photo, photo]).run.input.n_files == 2


def test_a_dual_encoder_needs_texts(photo: Path) -> None:
    with pytest.raises(CannotRunError, match="compares images with texts") as caught:
        ms.predict(clip().eval(), [photo, photo])
    assert "--labels" in (caught.value.hint or "") or "labels" in (caught.value.hint or "")


def test_labels_are_texts_for_a_dual_encoder(photo: Path, tmp_path: Path) -> None:
    """The scores are those of transformers for the same ids and pixels."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: n for n, word in enumerate(["<pad>", "<unk>", "</s>", "a", "cat", "dog", "red"])}
    inner = Tokenizer(models.WordLevel(words, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    model = clip().eval()
    model.save_pretrained(tmp_path / "clip")
    tokenizer.save_pretrained(tmp_path / "clip")
    record = ms.predict(f"hf:{tmp_path / 'clip'}", photo, labels="a cat, a red dog,cat")
    assert {guess.label for guess in record[0].top} == {"a cat", "a red dog", "cat"}
    seen = {}
    ids = tokenizer(["a cat", "a red dog", "cat"], padding=True, return_tensors="pt")

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen["x"] = x
            return x.mean((2, 3))

    ms.predict(Kept(), photo, size=32)
    with torch.no_grad():
        logits = model(pixel_values=seen["x"], input_ids=ids.input_ids, attention_mask=ids.attention_mask)
    expected = logits.logits_per_image[0]
    found = {guess.index: guess.logit for guess in record[0].top}
    assert [found[n] for n in range(3)] == pytest.approx(expected.tolist(), rel=1e-4)


def test_images_of_a_size_that_the_model_has_as_an_attribute(photo: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Flatten(), nn.Linear(64, 3))
    model.image_size = 32  # type: ignore[assignment]
    assert ms.summary(model).run.input.shape == ((1, 3, 32, 32),)
    assert ms.predict(model, photo).run.input.shape == ((1, 3, 32, 32),)


BLOCKS = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}
CROSSED = {"cross_attention_dim": 8, "attention_head_dim": 4}
DOWN = {"down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D")}
HEADS = {"num_attention_heads": 2, "attention_head_dim": 8, "sample_size": 8, "in_channels": 4}
DENOISERS = {
    "ControlNetModel": {**BLOCKS, **CROSSED, **DOWN, "conditioning_embedding_out_channels": (8, 8)},
    "UNet2DConditionModel": {
        **{**BLOCKS, **CROSSED, **DOWN, "sample_size": 16},
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    },
    "PixArtTransformer2DModel": {
        **{**HEADS, "out_channels": 8, "num_layers": 1, "cross_attention_dim": 16, "caption_channels": 12}
    },
    "SD3Transformer2DModel": {
        **{**HEADS, "num_layers": 1, "caption_projection_dim": 16, "joint_attention_dim": 8},
        "pooled_projection_dim": 8,
    },
    "FluxTransformer2DModel": {
        **{"in_channels": 4, "num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2},
        **{"attention_head_dim": 16, "joint_attention_dim": 8, "pooled_projection_dim": 8},
        **{"guidance_embeds": True, "axes_dims_rope": (4, 4, 8)},
    },
    "UNet2DModel": {
        **{**BLOCKS, "sample_size": 16, "num_class_embeds": 5},
        **{"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2},
    },
}


@pytest.mark.peers
@pytest.mark.parametrize("name", DENOISERS)
def test_the_inputs_of_a_denoiser_are_filled_in(name: str, photo: Path) -> None:
    diffusers = pytest.importorskip("diffusers")
    model = getattr(diffusers, name)(**DENOISERS[name]).eval()
    assert ms.summary(model).totals.params == sum(p.numel() for p in model.parameters())
    assert ms.stats(model).layers
    if name == "UNet2DModel":
        assert ms.stats(model, photo).run.input.shape[0] == (1, 3, 16, 16)


@pytest.mark.parametrize(("names", "hint"), [
    ("x, t", "--input x=photo.png --input t=int64:1"),
    ("image, timesteps", "--input image=photo.png --input timesteps=int64:1"),
    ("x, words_ids", "--input x=photo.png --input words_ids=int64:1,16"),
])  # fmt: skip
def test_the_hint_of_a_missing_argument_says_what_it_may_be(names: str, hint: str) -> None:
    namespace: dict[str, Any] = {"nn": nn}
    exec(f"class Net(nn.Module):\n def forward(self, {names}): return x", namespace)
    assert suggestion(namespace["Net"](), "photo.png") == hint
