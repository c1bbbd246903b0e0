"""Healthy by architecture: networks that look sick to whoever knows convolutions with a norm only."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from programs.data import batches, blobs, curve, digits, masks_of_shapes, shapes, stripes, tags, text, tokens
from programs.loops import fit
from programs.models import FunctionalNet, ResNet, RowReader, TokenReader, UNet, ViT, cnn, mlp
from programs.scores import Score, accuracy, explained, thresholded


def plain_cnn() -> Score:
    data = digits()
    model = cnn()
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data)
    return accuracy(model, *data)


def plain_mlp_adam() -> Score:
    data = blobs()
    model = mlp(16, 64, 64, 5)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, steps=200)
    return accuracy(model, *data)


def cnn_with_wrong_labels() -> Score:
    images, labels = digits(noise=0.3)
    wrong = torch.rand(len(labels)) < 0.2
    noted = torch.where(wrong, torch.randint(10, labels.shape), labels)
    model = cnn()
    fit(model, torch.optim.Adam(model.parameters(), lr=2e-3), (images, noted), steps=150)
    return accuracy(model, images, labels)


def zero_gamma_resnet() -> Score:
    data = digits()
    model = ResNet(blocks=3)
    for block in model.blocks:
        nn.init.zeros_(block.bn2.weight)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4), data)
    return accuracy(model, *data)


def layerscale_vit() -> Score:
    data = stripes()
    model = ViT(classes=6, depth=3, scale=1e-5)
    fit(model, torch.optim.AdamW(model.parameters(), lr=3e-3), data, steps=150)
    return accuracy(model, *data)


class LoRA(nn.Module):
    """A linear layer that stays, and a low rank that learns."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Linear(base.in_features, rank, bias=False)
        self.B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.B(self.A(x))


def lora_mlp() -> Score:
    data = blobs(classes=6, features=24)
    model = nn.Sequential(
        LoRA(nn.Linear(24, 96)), nn.ReLU(), LoRA(nn.Linear(96, 96)), nn.ReLU(), nn.Linear(96, 6)
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    fit(model, torch.optim.Adam(trained, lr=3e-3), data, steps=150)
    return accuracy(model, *data)


def zero_head_cnn() -> Score:
    data = digits()
    model = cnn()
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data)
    return accuracy(model, *data)


def deep_mlp_without_norm() -> Score:
    data = digits()
    model = mlp(256, 128, 128, 128, 128, 10)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, steps=200)
    return accuracy(model, *data)


def functional_digits() -> Score:
    data = digits()
    model = FunctionalNet(dropout=0.25)
    fit(model, torch.optim.Adam(model.parameters(), lr=2e-3), data, steps=200)
    return accuracy(model, *data)


def vit_on_shapes() -> Score:
    data = shapes()
    model = ViT(3, 4, size=20)
    fit(model, torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05), data, steps=250)
    return accuracy(model, *data)


def lstm_on_rows() -> Score:
    data = digits()
    model = RowReader(nn.LSTM)
    fit(model, torch.optim.Adam(model.parameters(), lr=5e-3), data, steps=250)
    return accuracy(model, *data)


def transformer_on_tokens() -> Score:
    data = tokens()
    model = TokenReader()
    fit(model, torch.optim.Adam(model.parameters(), lr=2e-3), data, steps=150)
    return accuracy(model, *data)


def gru_language_model() -> Score:
    written, following = text()
    embedding, gru, head = nn.Embedding(16, 24), nn.GRU(24, 48, batch_first=True), nn.Linear(48, 16)
    parameters = [*embedding.parameters(), *gru.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=5e-3)
    for words, targets in batches(written, following, steps=120):
        out, _ = gru(embedding(words))
        loss = F.cross_entropy(head(out).reshape(-1, 16), targets.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return accuracy(lambda words: head(gru(embedding(words))[0]).transpose(1, 2), written, following)


def unet_of_shapes() -> Score:
    images, masks = masks_of_shapes()
    model = UNet()
    fit(model, torch.optim.Adam(model.parameters(), lr=5e-3), (images, masks), steps=120, size=16)
    return accuracy(model, images, masks)


def regression_mlp() -> Score:
    data = curve()
    model = mlp(6, 64, 64, 1, activation=nn.Tanh)
    fit(model, torch.optim.Adam(model.parameters(), lr=5e-3), data, steps=300, criterion=nn.MSELoss())
    return explained(model, *data)


def tags_cnn() -> Score:
    data = tags()
    model = cnn(classes=5)
    fit(model, torch.optim.Adam(model.parameters(), lr=2e-3), data, criterion=nn.BCEWithLogitsLoss())
    return thresholded(model, *data)
