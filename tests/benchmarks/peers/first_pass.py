"""The peer of a first answer: import, build a model without weights, and run it once. Arguments: name, pass."""

import sys

import torch
import torchvision

model = torchvision.models.get_model(sys.argv[1], weights=None).eval()
image = torch.randn(1, 3, 224, 224)
if sys.argv[2] == "forward":
    with torch.no_grad():
        model(image)
else:
    scores = model(image)
    torch.nn.functional.cross_entropy(scores, scores.detach().argmax(1)).backward()
