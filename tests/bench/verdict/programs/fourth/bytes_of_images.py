"""Images as bytes, made into floats by the collator; soft targets."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, icons
from torch import nn
from torch.utils.data import DataLoader

images, labels = icons(420, 5)
images = ((images * 40 + 110).clamp(0, 255)).to(torch.uint8)


def scale(images):
    if fault("whole_division"):
        return (images // 255).float()
    return (images.float() / 255 - 0.45) / 0.2


def collate(rows):
    return scale(torch.stack([image for image, _ in rows])), torch.stack([label for _, label in rows])


loader = DataLoader(list(zip(images, labels, strict=True)), 30, shuffle=True, collate_fn=collate)
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, stride=2), nn.CELU(), nn.Conv2d(16, 32, 3), nn.CELU(), nn.Flatten(), nn.Linear(288, 5)
)
smoothing = 0.99 if fault("smoothing_of_0.99") else 0.1
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for epoch in range(12):
    for a, b in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(a), b, label_smoothing=smoothing)
        loss.backward()
        optimizer.step()


def measure():
    return accuracy(net(scale(images)), labels)
