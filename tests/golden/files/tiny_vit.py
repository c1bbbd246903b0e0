"""A small vision transformer."""

from torch import nn
from torchvision.models.vision_transformer import VisionTransformer


def tiny_vit(num_classes: int = 10) -> nn.Module:
    """Return a transformer of two layers for images of 32 x 32 pixels."""
    model = VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=24, mlp_dim=48, num_classes=num_classes
    )
    nn.init.normal_(model.heads.head.weight, std=0.1)  # which is zero otherwise
    return model
