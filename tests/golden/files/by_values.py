from torch import nn


class ByValues(nn.Module):
    """Decide by values, so that a step without values fails."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x):
        x = self.conv(x).mean((2, 3))
        return self.fc(x.relu() if x.detach().isfinite().all() else x)
