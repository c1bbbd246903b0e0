from torch import nn


class TwoInputs(nn.Module):
    """Take an image and a vector by name."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3)
        self.side = nn.Linear(5, width)

    def forward(self, image, side):
        return self.conv(image).mean((2, 3)) + self.side(side)
