"""A short training script like anybody's, for `modelscope watch samples/train.py`; it knows nothing of modelscope.

    python samples/train.py                     # 60 steps on the drawn data set, a few seconds
    python samples/train.py --variant sick      # one number is wrong: find out where it hurts
    python samples/train.py --variant stuck     # another one is: nothing hurts, but it does not learn

The sick variant takes a learning rate that is far too high, without the batch norms that would have hidden it. The
stuck one takes an eps for Adam that is far too large.
"""

import argparse

import torch
from dataset import Shapes
from tiny_resnet import TinyResNet
from torch import nn
from torch.nn import functional
from torchvision import transforms

PICTURES, SIZE = 320, 32


def train(variant: str, steps: int, batch: int, seed: int) -> nn.Module:
    """Train a tiny residual network and return it; the seed decides everything."""
    torch.manual_seed(seed)
    model = TinyResNet()
    rate = 0.03
    if variant == "sick":
        rate = 0.3
        remove_norms(model)
    pictures, labels = load_pictures()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    if variant == "stuck":
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e3)
    model.train()
    for step in range(steps):
        chosen = torch.randint(len(labels), (batch,))
        loss = functional.cross_entropy(model(pictures[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"step {step + 1}: loss {loss.item():.3f}")
    return model


def load_pictures() -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the pictures once, (N, 3, H, W) normalised, and their labels (N,)."""
    drawn = Shapes(PICTURES, size=SIZE, transform=transforms.ToTensor())
    pictures = torch.stack([picture for picture, _ in drawn])
    return (pictures - pictures.mean()) / pictures.std(), torch.tensor([label for _, label in drawn])


def remove_norms(model: nn.Module) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, nn.Identity())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", choices=["healthy", "sick", "stuck"], default="healthy")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", help="write the trained weights here")
    options = parser.parse_args()
    trained = train(options.variant, options.steps, options.batch, options.seed)
    if options.save:
        torch.save(trained.state_dict(), options.save)
