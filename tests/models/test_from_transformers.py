"""Models of transformers by folder and by name: its own class, its own preparation of images, nobody's code."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from PIL import Image
from tolerance import close

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.model_config import natural_shapes
from modelscope_cli.inputs.preprocess import processor_preset
from modelscope_cli.inputs.preprocessing_choice import plan_preprocessing
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.load import load_model
from modelscope_cli.models.request import ModelRequest

transformers = pytest.importorskip("transformers")
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
LABELS = {0: "cat", 1: "dog", 2: "owl"}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSCOPE_OFFLINE", "1")


def asked(model: str, **said: Any) -> ModelRequest:
    return ModelRequest(model, device="cpu", progress=False, **said)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small classifier of three classes and its image processor."""
    folder = tmp_path_factory.mktemp("made")
    torch.manual_seed(0)
    config = transformers.ViTConfig(**TINY, image_size=48, patch_size=16, num_labels=3, id2label=LABELS)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 48, "width": 48}).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "vit"))


@pytest.fixture
def image() -> Image.Image:
    generator = torch.Generator().manual_seed(0)
    return Image.fromarray(torch.randint(0, 256, (70, 90, 3), dtype=torch.uint8, generator=generator).numpy())


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_a_prediction_is_what_transformers_predicts(folder: Path, image: Image.Image) -> None:
    theirs = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    with torch.no_grad():
        logits = theirs(**processor(images=image, return_tensors="pt")).logits[0]
    record = ms.predict(f"hf:{folder}", [image], device="cpu")
    ours = {guess.index: guess for guess in record.predictions[0].top}
    assert [ours[i].logit for i in range(3)] == pytest.approx(logits.tolist(), abs=1e-5)
    assert [ours[i].label for i in range(3)] == list(LABELS.values())
    assert record.run.model.source == "hf"
    assert record.run.model.weights.resolved == "model.safetensors"
    assert record.run.input.shape == ((1, 3, 48, 48),)
    assert record.run.input.preprocessing.endswith(f"(from preprocessor_config.json of {folder})")


def test_a_summary_needs_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    record = ms.summary(f"hf:{folder}")
    config = transformers.AutoConfig.from_pretrained(folder)
    n_params = sum(p.numel() for p in transformers.ViTForImageClassification(config).parameters())
    assert record.totals.params == n_params
    assert record.run.input.shape == ((1, 3, 48, 48),)


def test_other_numbers_of_classes_and_settings(folder: Path) -> None:
    loaded = load_model(asked(f"hf:{folder}", num_classes=5, model_args=("image_size=32",), weights="none"))
    assert loaded.module(torch.rand(1, 3, 32, 32)).logits.shape == (1, 5)
    grafted = load_model(asked(f"hf:{folder}", num_classes=5))
    assert grafted.module.classifier.out_features == 5
    assert {warning.code for warning in grafted.warnings} == {"misshaped_keys"}


def test_weights_of_a_pickle_are_read_and_nothing_of_it_is_run(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    class Hostile:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "ran",)

    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**state, "hostile": Hostile()}, folder / "pytorch_model.bin")
    loaded = load_model(asked(f"hf:{folder}"))
    assert torch.equal(loaded.module.classifier.weight, state["classifier.weight"])
    assert "dangerous_code" in {warning.code for warning in loaded.warnings}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("model_type", ["vit", "of_nobody"])
def test_a_hostile_auto_map_runs_nothing(folder: Path, tmp_path: Path, model_type: str) -> None:
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    names = ("AutoConfig", "AutoModel", "AutoModelForImageClassification", "AutoImageProcessor")
    change(folder / "config.json", model_type=model_type, auto_map=dict.fromkeys(names, "evil.Evil"))
    change(folder / "preprocessor_config.json", auto_map={"AutoImageProcessor": "evil.Evil"})
    if model_type == "vit":
        assert load_model(asked(f"hf:{folder}")).info.class_name == "ViTForImageClassification"
    else:
        with pytest.raises(CannotRunError, match="cannot be loaded"):
            load_model(asked(f"hf:{folder}"))
    assert not (tmp_path / "ran").exists()


def test_remote_code_cannot_be_asked_for(folder: Path) -> None:
    with pytest.raises(UsageError, match="has no setting 'trust_remote_code'"):
        load_model(asked(f"hf:{folder}", model_args=("trust_remote_code=true",)))


@pytest.mark.parametrize(
    ("name", "words"), [("", "neither a model nor a folder"), ("./nowhere", "neither a model nor a folder")]
)
def test_what_is_neither_a_name_nor_a_folder(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_model(asked(f"hf:{name}"))


def test_a_name_that_is_not_in_the_cache_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CannotRunError, match="'hf:nobody/nothing' cannot be loaded") as caught:
        load_model(asked("hf:nobody/nothing"))
    assert "\n" not in caught.value.message


def test_a_repository_of_the_cache(folder: Path, tmp_path: Path, image: Image.Image) -> None:
    """What the hub's library would have left there; in a process of its own, which reads its place at the start."""
    repository = tmp_path / "hub" / "models--owner--name"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(folder, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    image.save(tmp_path / "image.png")
    typed = f"predict {tmp_path}/image.png --model hf:owner/name --device cpu".split()
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub")}
    done = warm.run("-m", "modelscope_cli", *typed, env=environment)
    assert done.returncode == 0, done.stderr
    assert "weights: model.safetensors (auto; cache" in done.stderr
    assert "preprocessor_config.json of hf:owner/name" in done.stderr
    assert any(f"\t{label}\t" in done.stdout for label in LABELS.values())


def test_default_labels_of_a_config_are_not_labels(folder: Path) -> None:
    change(folder / "config.json", id2label={str(i): f"LABEL_{i}" for i in range(3)})
    assert load_model(asked(f"hf:{folder}")).categories is None


@pytest.mark.parametrize(("text", "reason"), [
    ('{"do_resize": true,', "is not a valid JSON file$"),
    ('{"image_processor_type": "Nobodys"}', "Unrecognized image processor"),
    ('{"image_processor_type": "ViTImageProcessor", "size": "huge"}', "Could not convert size"),
])  # fmt: skip
def test_a_processor_that_cannot_be_used_is_a_sentence_and_no_guess(
    folder: Path, image: Image.Image, text: str, reason: str
) -> None:
    file = folder / "preprocessor_config.json"
    file.write_text(text)
    with pytest.raises(CannotRunError, match="image preprocessing of the model") as caught:
        ms.predict(f"hf:{folder}", [image], device="cpu")
    assert re.search(reason, caught.value.message)
    assert caught.value.hint == f"python -m json.tool {file}"
    assert ms.summary(f"hf:{folder}").run.model.name == f"hf:{folder}"  # which prepares no image


@pytest.fixture
def sharded(folder: Path, tmp_path: Path) -> Path:
    """The same in shards, as large models are published."""
    other = tmp_path / "sharded"
    shutil.copytree(folder, other, ignore=shutil.ignore_patterns("*.safetensors"))
    module = transformers.AutoModelForImageClassification.from_pretrained(folder)
    module.save_pretrained(other, max_shard_size="5KB")
    assert len(list(other.glob("*.safetensors"))) > 2
    return other


def test_shards_are_one_model(folder: Path, sharded: Path, image: Image.Image) -> None:
    whole = ms.predict(f"hf:{folder}", [image], device="cpu").predictions[0].top
    for typed in (f"hf:{sharded}", sharded, sharded / "model.safetensors.index.json"):
        record = ms.predict(typed, [image], device="cpu")
        assert record.run.model.name == f"hf:{sharded}"
        assert [(guess.index, guess.score) for guess in record.predictions[0].top] == [
            (guess.index, close(guess.score)) for guess in whole
        ]


def test_a_module_of_transformers_says_the_same_of_itself(folder: Path, image: Image.Image) -> None:
    module = transformers.AutoModelForImageClassification.from_pretrained(folder)
    record = ms.predict(module, [image])
    assert record.run.input.shape == ((1, 3, 48, 48),)
    assert {guess.label for guess in record.predictions[0].top} == set(LABELS.values())
    assert "preprocessor_config.json" in record.run.input.preprocessing


@pytest.mark.parametrize(("kind", "config", "shape"), [
    ("ViTModel", {"image_size": 32, "patch_size": 16}, (3, 32, 32)),
    ("ViTModel", {"image_size": 32, "patch_size": 16, "num_channels": 1}, (1, 32, 32)),
    ("VideoMAEModel", {"image_size": 32, "patch_size": 16, "num_frames": 4}, (4, 3, 32, 32)),
    ("CLIPVisionModel", {"image_size": 32, "patch_size": 16}, (3, 32, 32)),
    ("DetrModel", None, None),
])  # fmt: skip
def test_the_size_is_the_configurations(kind: str, config: Any, shape: Any) -> None:
    if config is None:  # says nothing of it
        module = transformers.ResNetModel(
            transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1])
        )
        assert natural_shapes("custom", None, module, 1) == ((1, 3, 224, 224),)
        return
    own = getattr(transformers, kind)
    module = own(own.config_class(**TINY, **config)).eval()
    assert natural_shapes("custom", None, module, 2) == ((2, *shape),)
    module(torch.rand(1, *shape))


PROCESSORS = {
    "ViT": {},
    "ConvNext at 384": {"size": {"shortest_edge": 384}},
    "CLIP": {"size": {"shortest_edge": 64}, "crop_size": {"height": 48, "width": 64}},
    "EfficientNet of an offset": {"rescale_offset": True, "include_top": False},
    "Segformer": {"size": {"height": 64, "width": 96}},
    "ViT as it is": {"do_rescale": False, "do_normalize": False},
    "LlavaNext": {},
    "GotOcr2": {"crop_to_patches": True, "min_patches": 2, "size": {"height": 64, "width": 64}},
    "Detr": {"size": {"shortest_edge": 80, "longest_edge": 100}},
}
TILES = ("LlavaNext", "GotOcr2")


@pytest.fixture
def processor_in(tmp_path: Path) -> Callable[[str], Any]:
    """Return a function that writes a processor, and gives its preset and itself."""

    def make(name: str) -> tuple[Any, Any]:
        kind = getattr(transformers, f"{name.partition(' ')[0]}ImageProcessor")
        kind(**PROCESSORS[name]).save_pretrained(tmp_path)
        own = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
        module = torch.nn.Module()
        module.config = transformers.PreTrainedConfig(name_or_path=str(tmp_path))
        return processor_preset(module), own

    return make


@pytest.mark.parametrize("name", [name for name in PROCESSORS if name not in TILES])
def test_images_are_prepared_as_the_processor_does(
    name: str, processor_in: Callable[[str], Any], image: Image.Image
) -> None:
    preset, own = processor_in(name)
    plan = plan_preprocessing(InputRequest(), "custom", preset, None)
    for one in (image, image.crop((0, 0, 33, 64)), image.resize((64, 64))):
        expected = own(images=one, return_tensors="pt")["pixel_values"][0].float()
        assert torch.equal(plan.apply(one, "x"), expected)
        # What is undone to show the image, and done again to differentiate it, is the same arithmetic.
        scale = 1 / (255 * torch.tensor(plan.std).min())
        again = plan.normalize(plan.picture(expected)[None].float() / 255)[0]
        assert (again - expected).abs().max() <= 0.51 * scale


@pytest.mark.parametrize("name", TILES)
def test_a_processor_of_tiles_is_refused_in_a_sentence(
    name: str, processor_in: Callable[[str], Any], image: Image.Image
) -> None:
    preset, own = processor_in(name)
    assert own(images=image, return_tensors="pt")["pixel_values"].squeeze(0).ndim == 4
    plan = plan_preprocessing(InputRequest(), "custom", preset, None)
    with pytest.raises(CannotRunError, match="not channels, height and width"):
        plan.apply(image, "x")
