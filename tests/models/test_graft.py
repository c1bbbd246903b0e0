import torch
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

from modelscope_cli.models.initialise import graft


class Head(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.scores = nn.Conv2d(4, 3 * num_classes, 1)
        self.boxes = nn.Conv2d(4, 12, 1)


class Detector(nn.Module):
    def __init__(self, norm: type[nn.Module], num_classes: int) -> None:
        super().__init__()
        self.norm = norm(4)
        self.head = Head(num_classes)
        self.transform_input = num_classes == 91


def test_only_what_has_other_shapes_is_moved() -> None:
    pretrained, fresh = Detector(FrozenBatchNorm2d, 91), Detector(nn.BatchNorm2d, 5)
    boxes = pretrained.head.boxes
    assert graft(pretrained, fresh) == ["head.scores.weight", "head.scores.bias"]
    assert pretrained.head.scores is fresh.head.scores
    assert pretrained.head.boxes is boxes
    assert pretrained.head.num_classes == 5
    assert isinstance(pretrained.norm, FrozenBatchNorm2d)
    assert pretrained.transform_input is True


def test_the_same_shapes_move_nothing() -> None:
    pretrained = Detector(nn.BatchNorm2d, 5)
    before = {name: value.clone() for name, value in pretrained.state_dict().items()}
    assert graft(pretrained, Detector(nn.BatchNorm2d, 5)) == []
    torch.testing.assert_close(dict(pretrained.state_dict()), before)


def test_parts_that_only_the_fresh_one_has_are_left_out() -> None:
    fresh = nn.ModuleDict({"fc": nn.Linear(2, 3), "auxiliary": nn.Linear(2, 3)})
    pretrained = nn.ModuleDict({"fc": nn.Linear(2, 9)})
    assert graft(pretrained, fresh) == ["fc.weight", "fc.bias"]
    assert list(pretrained) == ["fc"]
