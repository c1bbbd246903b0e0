"""Models of ultralytics, made by their own library: how images are prepared, and what detectors return."""

import pytest
import torch
from PIL import Image

REPLACED = Image.open, torch.save  # importing it replaces them
pytest.importorskip("ultralytics")

from ultralytics.nn import tasks  # noqa: E402

Image.open, torch.save = REPLACED

import modelscope_cli as ms  # noqa: E402
from modelscope_cli.errors import CannotRunError  # noqa: E402

NAMES = {0: "cat", 1: "dog", 2: "owl"}


def small(kind="DetectionModel", cfg="yolo11n.yaml", **changes):
    """A detector with a spread of scores, as if it were trained."""
    torch.manual_seed(0)
    net = getattr(tasks, kind)({**tasks.yaml_model_load(cfg), **changes}, nc=3, verbose=False)
    net.names, net.args = NAMES, {"imgsz": 64}
    for layer in net.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None
    with torch.no_grad():
        net.train()(torch.rand(4, 3, 64, 64))
    return net.eval()


def spread(net):
    """Spread the scores of a detector, so that some are above the threshold, and few of them 1."""
    with torch.no_grad():
        logits = net(torch.rand(4, 3, 64, 64))[1]["scores"]
        for head in net.model[-1].cv3:
            head[-1].weight.mul_(1.5 / logits.std())
            head[-1].bias.fill_(0)
    return net


def test_rotated_boxes_are_not_read():
    with pytest.raises(CannotRunError, match="rotated boxes"):
        ms.predict(small("OBBModel", "yolo11n-obb.yaml"), torch.rand(1, 3, 64, 64))


def test_boxes_of_a_detector_without_suppression():
    """With two classes its rows are as wide as the columns of others are high."""
    torch.manual_seed(0)
    net = tasks.DetectionModel(tasks.yaml_model_load("yolov10n.yaml"), nc=2, verbose=False).eval()
    net.model[-1].end2end, net.names = True, {0: "cat", 1: "dog"}
    with torch.no_grad():
        for head in net.model[-1].one2one_cv3:
            head[-1].bias.fill_(0)
        rows = net(torch.ones(1, 3, 64, 64))[0][0]
    expected = rows[rows[:, 4] > 0.25]
    assert 0 < len(expected) <= len(rows)
    guesses = ms.predict(net, torch.ones(1, 3, 64, 64), top=400)[0].top
    assert [guess.index for guess in guesses] == expected[:, 5].int().tolist()
    assert torch.allclose(
        torch.tensor([guess.box for guess in guesses]), expected[:, :4].clamp(0, 64), atol=1e-3
    )


def test_images_are_prepared_as_the_library_prepares_them(tmp_path):
    import cv2
    import numpy as np
    from ultralytics.data.augment import LetterBox

    pixels = np.random.default_rng(0).integers(0, 255, (50, 90, 3), dtype=np.uint8)
    cv2.imwrite(str(tmp_path / "image.png"), pixels)
    expected = LetterBox((64, 64), auto=True, stride=32)(image=pixels)[..., ::-1].transpose(2, 0, 1) / 255
    record = ms.stats(small(), tmp_path / "image.png", layer="model.0.conv")
    assert record.run.input.shape[0][1:] == expected.shape
    assert record.inputs[0].mean == pytest.approx(expected.mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "task", "cfg"),
    [("DetectionModel", "detect", "yolo11n.yaml"), ("SegmentationModel", "segment", "yolo11n-seg.yaml")],
)
def test_boxes_are_in_pixels_of_the_file(kind, task, cfg, tmp_path):
    import numpy as np
    from ultralytics import YOLO

    net = spread(small(kind, cfg))
    net.task = task
    pixels = np.random.default_rng(0).integers(0, 255, (75, 131, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    yolo = YOLO(cfg, task=net.task)
    yolo.model = net
    (theirs,) = yolo.predict(pixels[..., ::-1], imgsz=64, verbose=False, save=False, project=str(tmp_path))
    ours = ms.predict(yolo.predictor.model.model, tmp_path / "image.png", top=400)[0].top
    rows = theirs.boxes
    order = rows.conf.argsort(descending=True, stable=True)
    assert len(ours) == len(rows) > 5
    assert [one.index for one in ours] == rows.cls[order].int().tolist()
    assert torch.allclose(torch.tensor([one.score for one in ours]), rows.conf[order], atol=1e-5)
    assert float((torch.tensor([one.box for one in ours]) - rows.xyxy[order]).abs().max()) < 1e-3
