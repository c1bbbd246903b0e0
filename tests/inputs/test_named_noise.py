"""Models that take more than an image: the inputs that are filled in, and texts to compare."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import modelscope_cli as ms
from modelscope_cli.inputs.noise import natural_named

transformers = pytest.importorskip("transformers")
VISION = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 48, "image_size": 32, "patch_size": 8},
}
TEXT = {
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2},
    **{"intermediate_size": 48, "vocab_size": 120, "max_position_embeddings": 64},
}


def clip() -> Any:
    config = transformers.CLIPConfig(
        text_config={**TEXT, "eos_token_id": 2}, vision_config=VISION, projection_dim=16
    )
    return transformers.CLIPModel(config)


def owl() -> Any:
    text = {**TEXT, "max_position_embeddings": 6}
    return transformers.OwlViTForObjectDetection(
        transformers.OwlViTConfig(text_config=text, vision_config=VISION, projection_dim=32)
    )


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    Image.effect_noise((40, 40), 60).convert("RGB").save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.mark.parametrize(("build", "n_words"), [(clip, 16), (owl, 6)])
def test_text_is_filled_in(build: Any, n_words: int, photo: Path) -> None:
    torch.manual_seed(0)
    model = build().eval()
    named = natural_named(model, 2)
    assert named is not None
    assert named["input_ids"].shape == (2, n_words)
    assert ms.summary(model).totals.params == sum(p.numel() for p in model.parameters())
    assert ms.stats(model).layers
    assert ms.stats(model, [photo, photo]).run.input.n_files == 2


def words_of() -> Any:
    """Return a tokenizer of few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    known = {"<pad>": 0, "<unk>": 1, "</s>": 2, "a": 3, "cat": 4, "dog": 5, "red": 6}
    inner = Tokenizer(models.WordLevel(known, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=6
    )


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
            if not x.is_meta:  # on which it runs to find how its output is made
                seen["x"] = x
            return x.mean((2, 3))

    ms.predict(Kept(), photo, size=32)
    with torch.no_grad():
        logits = model(pixel_values=seen["x"], input_ids=ids.input_ids, attention_mask=ids.attention_mask)
    expected = logits.logits_per_image[0]
    found = {guess.index: guess.logit for guess in record[0].top}
    assert [found[n] for n in range(3)] == pytest.approx(expected.tolist(), rel=1e-4)
