"""Models that take more than an image: the inputs that are filled in, and texts to compare."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError
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


# The image tokens: 16 patches, 16 x 16 merged by 2 x 2, 16 shuffled by 2 x 2.
MODELS = [(clip, 0), (siglip2, 0), (llava, 16), (qwen, 64), (idefics, 4)]


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
    if build in (qwen, siglip2):
        with pytest.raises(CannotRunError, match="takes patches of images"):
            ms.stats(model, photo)
    else:
        assert ms.stats(model, [photo, photo]).run.input.n_files == 2


def words_of(**special: int) -> Any:
    """Return a tokenizer of few words, as BERT's with the numbers of its `special` tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    known = {"<pad>": 0, "<unk>": 1, "</s>": 2, "a": 3, "cat": 4, "dog": 5, "red": 6, **special}
    inner = Tokenizer(models.WordLevel(known, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        template = list(special.items())[:2]
        inner.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=template)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=6
    )


SIDE = {"height": 32, "width": 32}
SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}


def owl() -> tuple[Any, Any]:
    text = {**SMALL, "vocab_size": 50, "max_position_embeddings": 6}
    vision = {**SMALL, "image_size": 32, "patch_size": 8}
    config = transformers.OwlViTConfig(text_config=text, vision_config=vision, projection_dim=16)
    processor = transformers.OwlViTProcessor(transformers.OwlViTImageProcessor(size=SIDE), words_of())
    return transformers.OwlViTForObjectDetection(config), processor


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    files = [tmp_path / f"{n}.png" for n in range(3)]
    for n, file in enumerate(files):
        Image.effect_noise((50, 40), 60 + 20 * n).convert("RGB").save(file)
    return files


def saved(folder: Path, model: Any, processor: Any) -> Any:
    """Save a model and its processor; return the processor as the tool reads it."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")


def test_labels_are_what_a_detector_finds(photos: list[Path], tmp_path: Path) -> None:
    """Boxes, scores and labels are those that the processor of the model makes of the same outputs."""
    torch.manual_seed(0)
    model, processor = owl()
    processor.image_processor = saved(tmp_path / "net", model.eval(), processor)
    images, texts = [Image.open(file) for file in photos], ["a cat", "red", "a dog"]
    words = processor(text=[texts] * 3, images=images, return_tensors="pt")
    with torch.no_grad():
        answer = model(**words)
    more = {"text_threshold": 0.0, "input_ids": words["input_ids"]} if "Dino" in type(model).__name__ else {}
    truth = processor.post_process_grounded_object_detection(
        answer, threshold=0.0, target_sizes=[(40, 50)] * 3, **more
    )
    limits = torch.tensor([50.0, 40.0] * 2)
    for found, expected in zip(
        ms.predict(f"hf:{tmp_path / 'net'}", photos, labels=texts, top=999), truth, strict=True
    ):
        order = expected["scores"].argsort(descending=True, stable=True)
        scores = torch.tensor([guess.score for guess in found.top])
        torch.testing.assert_close(scores, expected["scores"][order])
        boxes = torch.tensor([guess.box for guess in found.top])
        inside = torch.minimum(expected["boxes"][order].clamp_min(0), limits)
        torch.testing.assert_close(boxes, inside, atol=1e-3, rtol=0)
        if not more:
            assert [guess.index for guess in found.top] == expected["labels"][order].tolist()
        assert {guess.label for guess in found.top} <= {*texts}


def test_labels_are_texts_for_a_dual_encoder(photo: Path, tmp_path: Path) -> None:
    """The scores are those of transformers for the same ids and pixels."""
    tokenizer = words_of()
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
