"""The peer of `modelscope stats FOLDER`: the same forwards and nothing else. Arguments: folder, batch."""

import sys
from pathlib import Path

import torch
from PIL import Image
from torchvision.models import ResNet50_Weights, resnet50

folder, batch = Path(sys.argv[1]), int(sys.argv[2])
model = resnet50().eval()
prepare = ResNet50_Weights.DEFAULT.transforms()
files = sorted(folder.iterdir())
with torch.no_grad():
    for start in range(0, len(files), batch):
        pictures = [Image.open(file).convert("RGB") for file in files[start : start + batch]]
        model(torch.stack([prepare(picture) for picture in pictures]))
