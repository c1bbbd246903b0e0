import pytest
import torch
import torchvision
from torch import nn

from modelscope_cli.errors import UsageError


def only_args(inputs):
    (batch,) = inputs
    return batch.args


def test_nothing_given_is_seeded_noise_of_the_natural_size_and_says_so(opened):
    inputs = opened(batch=2, seed=7)
    (image,) = only_args(inputs)
    assert image.shape == (2, 3, 224, 224)
    assert inputs.info.source == "noise"
    assert inputs.info.shape == ((2, 3, 224, 224),)
    assert (inputs.n_images, inputs.n_batches) == (2, 1)
    assert inputs.notes == ("input: normal noise, 2 x 3 x 224 x 224 (seed 7)",)
    assert abs(image.mean()) < 0.01
    assert abs(image.std() - 1) < 0.01


def test_noise_is_decided_by_the_seed_alone(opened):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = opened(shapes=("1,3,8,8",), seed=3)
    (once,), (again,), (other,) = (
        only_args(first),
        only_args(first),
        only_args(opened(shapes=("1,3,8,8",), seed=4)),
    )
    assert torch.equal(once, again)
    assert once is not again
    assert not torch.equal(once, other)
    assert torch.equal(before, torch.get_rng_state())


def test_several_shapes_are_several_inputs_of_their_own_dtype(opened):
    model = nn.ModuleList([nn.Embedding(30, 4), nn.Embedding(500, 4)])
    inputs = opened(
        shapes=("1,3,8,8", "int64:1,128", "float64:2,2", "bool:64", "uint8:400"),
        module=model,
        dtype=torch.bfloat16,
    )
    image, ids, double, mask, small = only_args(inputs)
    assert [x.dtype for x in (image, ids, double, mask, small)] == [
        torch.bfloat16, torch.int64, torch.float64, torch.bool, torch.uint8,
    ]  # fmt: skip
    assert (int(ids.min()), int(ids.max())) == (0, 29)
    assert set(mask.tolist()) == {True, False}
    assert "integers in 0..29, 1 x 128 (int64)" in inputs.notes[0]
    assert inputs.info.shape == ((1, 3, 8, 8), (1, 128), (2, 2), (64,), (400,))


def test_detection_noise_is_a_list_of_pictures_in_0_to_1(opened):
    inputs = opened(family="detection", shapes=("2,3,20,30", "3,9,9"))
    (images,) = only_args(inputs)
    assert [tuple(image.shape) for image in images] == [(3, 20, 30), (3, 20, 30), (3, 9, 9)]
    assert min(image.min() for image in images) >= 0
    assert max(image.max() for image in images) <= 1
    assert inputs.n_images == 3
    assert inputs.info.shape == ((3, 20, 30), (3, 20, 30), (3, 9, 9))


def test_optical_flow_noise_is_two_different_frames(opened):
    one, two = only_args(opened(family="optical_flow", size="128"))
    assert one.shape == two.shape == (1, 3, 128, 128)
    assert not torch.equal(one, two)


@pytest.mark.parametrize(("options", "quoted"), [
    ({"shapes": ("1,3,8,8",), "size": "9"}, "--size 9"),
    ({"shapes": ("float32:2,3,8,8",), "batch": 4}, "--batch 4"),
    ({"shapes": ("1,3,x",)}, "'x'"),
    ({"size": "32", "family": "custom", "module": nn.Linear(5, 5)}, "--size 32"),
])  # fmt: skip
def test_what_contradicts_another_option_or_the_model_is_an_error(opened, options, quoted):
    with pytest.raises(UsageError) as caught:
        opened(**options)
    assert quoted in caught.value.message
    assert caught.value.hint


def test_how_images_are_normalised_does_not_matter_to_noise(opened):
    plain, options = (only_args(opened(**keywords)) for keywords in ({}, {"mean": "0.5", "std": "0.5"}))
    assert torch.equal(plain[0], options[0])


class Spectrogram(nn.Sequential):
    """Takes (images, time, frequency), and makes images of it."""

    def forward(self, x):
        return super().forward(x[:, None])


def net(*layers):
    return nn.Sequential(*layers)


LRASPP = torchvision.models.segmentation.lraspp_mobilenet_v3_large
RAFT = torchvision.models.optical_flow.raft_small
ONE_IMAGE = {  # the family, the model, what is typed, the shape of one image
    "classifier": ("classification", torchvision.models.resnet18, ("3,64,48",), (3, 64, 48)),
    "segmentation": ("segmentation", lambda: LRASPP(weights_backbone=None), ("3,64,48",), (3, 64, 48)),
    "video": ("video", torchvision.models.video.r3d_18, ("3,8,32,32",), (3, 8, 32, 32)),
    "flow": ("optical_flow", RAFT, ("3,128,128", "3,128,128"), (3, 128, 128)),
    "gray": ("custom", lambda: net(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), ("1,28,28",), (1, 28, 28)),
    "float16": ("custom", lambda: net(nn.Conv2d(3, 4, 3)), ("float16:3,28,28",), (3, 28, 28)),
    "features": (
        "custom",
        lambda: net(nn.Conv2d(3, 4, 8), nn.Flatten(), nn.Linear(4, 2)),
        ("3x8x8",),
        (3, 8, 8),
    ),
}
WHOLE = {
    "sequence": (lambda: net(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)), "2,3,16"),
    "spectrogram": (lambda: Spectrogram(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), "2,20,30"),
    "tokens": (lambda: net(nn.Linear(16, 4), nn.LayerNorm(4)), "2,5,16"),
    "channels": (lambda: net(nn.Conv2d(3, 4, 3)), "5,3,28,28"),
}


@pytest.mark.parametrize("batch", [None, 1, 3])
@pytest.mark.parametrize("kind", ONE_IMAGE)
def test_a_shape_without_the_number_of_images_is_of_batch_images(opened, kind, batch):
    family, make, shapes, shape = ONE_IMAGE[kind]
    module = make().eval()
    args = only_args(opened(family=family, module=module, shapes=shapes, batch=batch))
    assert {tuple(one.shape) for one in args} == {(batch or 1, *shape)}
    if kind != "float16":
        module(*args)


@pytest.mark.parametrize("kind", WHOLE)
def test_a_shape_that_is_no_image_is_taken_as_it_is(opened, kind):
    make, typed = WHOLE[kind]
    module, n = make().eval(), int(typed[0])
    for batch in (None, n):
        (x,) = only_args(opened(family="custom", module=module, shapes=(typed,), batch=batch))
        assert ",".join(map(str, x.shape)) == typed
        module(x)
    with pytest.raises(UsageError, match="set different batch sizes") as raised:
        opened(family="custom", module=module, shapes=(typed,), batch=n + 1)
    assert raised.value.hint == f"--input-shape {n + 1}{typed[1:]}"


def test_one_image_with_its_dimension_is_of_batch_images_and_two_numbers_are_height_and_width(opened):
    layers = {"gray": nn.Conv2d(1, 4, 3), "rows": nn.Linear(9, 4), "signal": nn.LSTM(9, 4)}
    images = [("gray", "1,1,7,9"), ("gray", "1,7,9"), ("gray", "7,9"), ("rows", "1,9")]
    for name, typed in images:
        module = net(layers[name]).eval()
        (x,) = only_args(opened(family="custom", module=module, shapes=(typed,), batch=2))
        assert tuple(x.shape) == ((2, 9) if name == "rows" else (2, 1, 7, 9))
    for name, typed in (("rows", "7,9"), ("signal", "7,9")):
        (x,) = only_args(opened(family="custom", module=net(layers[name]), shapes=(typed,)))
        assert tuple(x.shape) == (7, 9)


def test_a_batch_of_detection_is_as_many_images_of_one_shape(opened):
    (images,) = only_args(opened(family="detection", shapes=("3,9,12",), batch=2))
    assert [tuple(image.shape) for image in images] == [(3, 9, 12), (3, 9, 12)]
