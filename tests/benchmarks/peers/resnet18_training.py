"""Train a resnet18 on the drawn data set, knowing nothing of who looks on. Takes the number of steps."""

import sys
from pathlib import Path

import torch
from torchvision.models import resnet18
from torchvision.transforms import ToTensor

sys.path.insert(0, str(Path(__file__).parents[3] / "samples"))
from dataset import Shapes

torch.manual_seed(0)
drawn = Shapes(160, size=96, transform=ToTensor())
pictures = torch.stack([picture for picture, _ in drawn])
labels = torch.tensor([label for _, label in drawn])
model = resnet18(num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in range(int(sys.argv[1])):
    chosen = torch.randint(len(labels), (16,))
    loss = torch.nn.functional.cross_entropy(model(pictures[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
