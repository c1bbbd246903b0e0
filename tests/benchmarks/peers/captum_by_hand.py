"""What one writes with captum for one image: Grad-CAM at a layer that one has to know, and integrated gradients."""

import sys

import torch
from captum.attr import IntegratedGradients, LayerGradCam
from PIL import Image
from torchvision.models import ResNet50_Weights, resnet50

if __name__ == "__main__":
    torch.manual_seed(0)
    model = resnet50(weights=None).eval()
    image = ResNet50_Weights.DEFAULT.transforms()(Image.open(sys.argv[1]).convert("RGB"))[None]
    target = int(model(image).argmax())
    LayerGradCam(model, model.layer4).attribute(image, target)
    IntegratedGradients(model).attribute(image, target=target, n_steps=50)
