"""Tokens, windows and transposed tokens as maps: what is planted at a place of the image appears there."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import torchvision
from tolerance import assert_close
from torch import Tensor, nn

from modelscope_cli.analysis.activations.arranged import by_shape
from modelscope_cli.analysis.activations.maps import CapturedOutput, ChannelChoice, capture_maps
from modelscope_cli.analysis.spatial.cells import Cells, Tracker, joined, seeded
from modelscope_cli.hooks.selection import select
from modelscope_cli.hooks.session import HookSession

PATCH = 4


def maps_of(model: nn.Module, x: Tensor, *layers: str) -> list[CapturedOutput]:
    """Return what `featuremaps` draws of some layers."""
    model.eval()
    return capture_maps(model, (x,), select(model, layers, (), (x,)), choice=ChannelChoice(1000))


def numbered(height: int, width: int, n: int = 1) -> tuple[Tensor, Tensor]:
    """Return `n` images whose every patch has a number of its own, and the numbers `(n, height, width)`."""
    numbers = torch.arange(1.0, n * height * width + 1).view(n, 1, height, width)
    image = numbers.repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3).expand(-1, 3, -1, -1)
    return image.contiguous(), numbers[:, 0]


class Patches(nn.Conv2d):
    """Two channels a patch: its mean, and minus twice that."""

    def __init__(self) -> None:
        super().__init__(3, 2, PATCH, PATCH, bias=False)
        with torch.no_grad():
            self.weight.fill_(1 / (3 * PATCH * PATCH))
            self.weight[1] *= -2


class Tokens(nn.Module):
    """A vision transformer's beginning, with any number of tokens before those of the image."""

    def __init__(self, n_extra: int, arrange: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.patches, self.look = Patches(), nn.Identity()
        self.extra = nn.Parameter(torch.full((1, n_extra, 2), 99.0))
        self.arrange = arrange

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.extra.expand(len(x), -1, -1), tokens], 1)
        return self.look(self.arrange(tokens + torch.zeros(1, tokens.shape[1], 2)))


@pytest.mark.parametrize("n_extra", [0, 1, 2, 5, 8, 11])
@pytest.mark.parametrize("sides", [(4, 4), (3, 5), (2, 8)])
def test_any_number_of_extra_tokens_and_any_shape_of_image(n_extra, sides):
    x, numbers = numbered(*sides)
    (exhibit,) = maps_of(Tokens(n_extra), x, "look")
    assert_close(exhibit.maps, torch.cat([numbers, -2 * numbers]))
    assert exhibit.record.shape == (n_extra + numbers.numel(), 2)
    said = {0: "", 1: "without 1 extra token"}
    assert exhibit.record.note == said.get(n_extra, f"without {n_extra} extra tokens")


def test_of_a_batch_the_first_image_is_drawn():
    x, numbers = numbered(3, 5, n=2)
    (exhibit,) = maps_of(Tokens(2), x.flip(0), "look")
    assert_close(exhibit.maps[0], numbers[1])


def by_linear(x: Tensor) -> Tensor:
    """Cut an image into patches as einops does."""
    n, c, h, w = x.shape
    cut = x.view(n, c, h // PATCH, PATCH, w // PATCH, PATCH).permute(0, 2, 4, 3, 5, 1)
    return cut.reshape(n, -1, PATCH * PATCH * c)


def by_unfold(x: Tensor) -> Tensor:
    return F.unfold(x, PATCH, stride=PATCH).transpose(1, 2)


@pytest.mark.parametrize("cut", [by_linear, by_unfold])
def test_patches_cut_by_hand_make_a_grid(cut):
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(3 * PATCH * PATCH, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.embed(cut(x))

    x, numbers = numbered(3, 6)
    model = Cut()
    nn.init.constant_(model.embed.weight, 1 / (3 * PATCH * PATCH))
    nn.init.zeros_(model.embed.bias)
    (exhibit,) = maps_of(model, x, "embed")
    assert_close(exhibit.maps, numbers.expand(2, -1, -1))


class Windows(nn.Module):
    """Windows of a shifted and padded map, as in Swin, of which a layer puts out (N*windows, size*size, C)."""

    def __init__(self, size: int, shift: int, is_flat: bool = True) -> None:
        super().__init__()
        self.patches, self.look = Patches(), nn.Linear(2, 2)
        self.size, self.shift, self.is_flat = size, shift, is_flat
        nn.init.eye_(self.look.weight)
        nn.init.zeros_(self.look.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        size = self.size
        x = F.pad(x, (0, 0, 0, -x.shape[2] % size, 0, -x.shape[1] % size))
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        n, h, w, c = x.shape
        x = x.view(n, h // size, size, w // size, size, c).permute(0, 1, 3, 2, 4, 5)
        return self.look(x.reshape(-1, size * size, c) if self.is_flat else x.reshape(-1, size, size, c))


@pytest.mark.parametrize("is_flat", [True, False])
@pytest.mark.parametrize(("sides", "size", "shift"), [((4, 6), 2, 0), ((6, 6), 3, 1), ((5, 7), 4, 2)])
def test_windows_are_put_together(sides, size, shift, is_flat):
    x, numbers = numbered(*sides, n=2)
    (exhibit,) = maps_of(Windows(size, shift, is_flat), x, "look")
    assert_close(exhibit.maps, torch.stack([numbers[0], -2 * numbers[0]]))
    n_windows = -(-sides[0] // size) * -(-sides[1] // size)
    assert exhibit.record.note.startswith(f"assembled from {n_windows} windows")
    assert ("padding" in exhibit.record.note) == (sides == (5, 7))


def test_windows_that_come_back_in_an_unknown_order_are_not_drawn_as_the_map():
    class Sorted(Windows):
        def forward(self, x: Tensor) -> Tensor:
            return self.look(super().forward(x).sort(1).values)

    x, _ = numbered(4, 4)
    *_, exhibit = maps_of(Sorted(2, 0), x, "look#1")
    assert exhibit.maps is None
    assert exhibit.record.problem.startswith("the first of 4 pieces that could not be assembled")


def test_overlapping_pieces_are_not_a_map():
    class Overlapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.look = Patches(), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.look(self.patches(x).unfold(2, 3, 1).flatten(2))

    x, _ = numbered(4, 4)
    (exhibit,) = maps_of(Overlapping(), x, "look")
    assert exhibit.maps is None
    assert exhibit.record.problem == "each position of the image occurs 1.5 times"


def test_windows_and_grids_of_maxvit_show_what_went_into_them():
    model = torchvision.models.MaxVit(
        input_size=(32, 32),
        stem_channels=4,
        partition_size=2,
        block_channels=[8],
        block_layers=[1],
        head_dim=4,
        stochastic_depth_prob=0.0,
    )
    base = "blocks.0.layers.0.layers"
    before, between, windows, grid = maps_of(  # in the order in which they begin
        model,
        torch.randn(1, 3, 32, 32),
        f"{base}.MBconv",
        f"{base}.window_attention.partition_op",
        f"{base}.window_attention",
        f"{base}.grid_attention.partition_swap",
    )
    assert_close(windows.maps, before.maps)
    assert_close(grid.maps, between.maps)
    assert "windows" in windows.record.note
    assert "windows" in grid.record.note


class Merging(nn.Module):
    """Four neighbours become one, as between the stages of Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.look, self.reduce = Patches(), nn.Identity(), nn.Linear(8, 2, bias=False)
        nn.init.constant_(self.reduce.weight, 0.25)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).abs().permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        x = x.view(n, h // 2, 2, w // 2, 2, c).transpose(2, 3).flatten(3)
        return self.reduce(self.look(x).flatten(1, 2))


def test_neighbours_that_are_merged_make_a_coarser_map():
    x, numbers = numbered(4, 6)
    look, reduced = maps_of(Merging(), x, "look", "reduce")
    assert look.maps.shape == (8, 2, 3)
    assert_close(look.maps[:2], torch.stack([numbers[0, ::2, ::2], 2 * numbers[0, ::2, ::2]]))
    means = F.avg_pool2d(numbers, 2)
    assert_close(reduced.maps, (3 * means).expand(2, -1, -1))


class Mixing(nn.Module):
    """Mixes tokens as MLP-Mixer does, by weights that change nothing."""

    def __init__(self, n_places: int, n_hidden: int) -> None:
        super().__init__()
        self.patches, self.wide, self.back = (
            Patches(),
            nn.Linear(n_places, n_hidden),
            nn.Linear(n_hidden, n_places),
        )
        self.act = nn.ReLU()
        for layer in (self.wide, self.back):
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).abs().flatten(2)
        return self.back(self.act(self.wide(tokens)))


@pytest.mark.parametrize("n", [1, 2])
def test_transposed_tokens_have_their_channels_first(n):
    x, numbers = numbered(3, 4, n)
    model = Mixing(12, 16)  # as many as a grid of 4 x 4 would have
    wide, _, back = maps_of(model, x, "wide", "act", "back")
    assert wide.maps is None
    assert wide.record.problem == "2 x 16 values without positions in the image"
    assert_close(back.maps, torch.stack([numbers[0], 2 * numbers[0]]))


def test_tokens_of_an_unknown_operator_cannot_be_drawn_and_say_so():
    x, _ = numbered(3, 5)
    (exhibit,) = maps_of(Tokens(2, lambda tokens: tokens.sort(1).values), x, "look")
    assert exhibit.maps is None
    assert exhibit.record.problem == "17 x 2 values without positions in the image"


SMALL = {
    "convolutions": torchvision.models.mobilenet_v3_small,
    "tokens": lambda: torchvision.models.VisionTransformer(64, 16, 1, 2, 16, 32),
    "windows": lambda: torchvision.models.SwinTransformer([4, 4], 8, [2, 2], [1, 2], [4, 4]),
}


@pytest.mark.parametrize("kind", SMALL)
def test_following_changes_no_bit(kind, unchanged):
    torch.manual_seed(0)
    model, x = SMALL[kind]().eval(), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        plain = model(x)
    check, tracker = unchanged(model), Tracker()
    with HookSession(model) as session, tracker.follow((x,)):
        assert torch.equal(session.run((x,)), plain)
    check()


def test_a_sum_of_two_orders_of_the_same_places_is_nowhere():
    at = seeded((1, 1, 4, 4))
    assert torch.equal(joined([at, at], (1, 1, 4, 4)).ids, at.ids)
    assert not joined([at, at.moved(lambda ids: ids.mT)], (1, 1, 4, 4)).is_anywhere()
    assert not joined([at, Cells(at.ids, (2, 8))], (1, 1, 4, 4)).is_anywhere()


def test_a_map_of_two_cells_stays_a_map_and_one_of_a_single_cell_is_a_vector():
    maps = torch.arange(6.0).reshape(3, 1, 2)
    assert torch.equal(by_shape(maps, 0, False).maps, maps)
    assert torch.equal(by_shape(maps[..., :1], 0, False).maps, maps[:, 0, 0])


def test_tokens_of_two_scales_have_no_common_places():
    class TwoScales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.look = Patches(), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            fine = self.patches(x)
            return self.look(torch.cat([fine.flatten(2), F.avg_pool2d(fine, 2).flatten(2)], 2).mT)

    x, _ = numbered(4, 4)
    (exhibit,) = maps_of(TwoScales(), x, "look")
    assert exhibit.record.problem == "20 x 2 values without positions in the image"
