"""Small trainings as people write them, each with one fault, or with none.

    python tests/bench/trials/train.py FAMILY FAULT [SEED]

The last line is `METRIC 0.93 higher` or `METRIC 0.12 lower`: of held-out samples, and which is better.
"""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH = 150, 32
NONE = "none"


class Tagger(nn.Module):
    """An LSTM that reads a sequence and answers at its end."""

    def __init__(self, width, classes):
        super().__init__()
        self.rnn = nn.LSTM(width, 48, batch_first=True)
        self.head = nn.Linear(48, classes)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.head(out[:, -1])


class Attention(nn.Module):
    """A transformer of one layer over tokens, which predicts the next one."""

    def __init__(self, words):
        super().__init__()
        self.embed = nn.Embedding(words, 32)
        self.place = nn.Parameter(0.1 * torch.randn(12, 32))
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, words)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place[: tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layer(x, src_mask=mask, is_causal=True)).transpose(1, 2)


class Flipped(torch.autograd.Function):
    """The identity, with a backward that has lost its sign."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Gate(nn.Module):
    def forward(self, x):
        return Flipped.apply(x)


class Cut(nn.Module):
    def forward(self, x):
        return x.detach()


def table(n):
    """Rows of features, of three classes."""
    x = torch.randn(n, 20)
    return x, (torch.tanh(x @ torch.randn(20, 8)) @ torch.randn(8, 3)).argmax(1)


def images(n):
    """Gratings of four directions, with noise."""
    y = torch.randint(0, 4, (n,))
    u, v = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    waves = torch.stack(
        [torch.sin(0.8 * (u * c + v * s)) for c, s in ((1, 0), (0, 1), (0.7, 0.7), (0.7, -0.7))]
    )
    colours = torch.rand(n, 3, 1, 1) + 0.5
    return colours * waves[y][:, None] + 0.5 * torch.randn(n, 3, 16, 16), y


def sequences(n):
    """Steps of five numbers; the class is where the first of them is largest, among four quarters."""
    x = torch.randn(n, 12, 5)
    y = torch.randint(0, 4, (n,))
    x[torch.arange(n), 3 * y + 1, 0] += 4
    return x, y


def sentences(n):
    """Tokens, each the one before plus a number that the first two fix."""
    first, by = torch.randint(0, 11, (n, 1)), torch.randint(1, 4, (n, 1))
    tokens = (first + by * torch.arange(13)) % 11
    return tokens[:, :-1], tokens[:, 1:]


def prices(n):
    """A number from twelve others."""
    x = torch.randn(n, 12)
    return x, (x[:, :1] * x[:, 1:2] + x[:, 2:4].sum(1, keepdim=True) + 0.1 * torch.randn(n, 1))


def tags(n):
    """Six answers of yes and no."""
    x = torch.randn(n, 16)
    return x, (torch.tanh(x @ torch.randn(16, 10)) @ torch.randn(10, 6) > 0.3).float()


def body(width, hidden=64, drop=0.0):
    return [nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(drop), nn.Linear(hidden, hidden), nn.ReLU()]


def convolutions(drop):
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(drop),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 4),
    )


# data, model by probability of dropout, criterion, optimizer
FAMILIES = {
    "table": (
        table,
        lambda p: nn.Sequential(*body(20, drop=p), nn.Linear(64, 3)),
        nn.CrossEntropyLoss,
        "adam",
    ),
    "images": (images, convolutions, nn.CrossEntropyLoss, "sgd"),
    "sequences": (sequences, lambda p: Tagger(5, 4), nn.CrossEntropyLoss, "adam"),
    "sentences": (sentences, lambda p: Attention(11), nn.CrossEntropyLoss, "adam"),
    "prices": (prices, lambda p: nn.Sequential(*body(12, drop=p), nn.Linear(64, 1)), nn.MSELoss, "adam"),
    "tags": (tags, lambda p: nn.Sequential(*body(16, drop=p), nn.Linear(64, 6)), nn.BCEWithLogitsLoss, "sgd"),
}


def optimizer_of(kind, parameters, fault):
    rate = {"adam": 3e-3, "sgd": 0.1}[kind]
    rate *= {"rate far too low": 1e-4, "rate far too high": 300.0}.get(fault, 1.0)
    decay = 30.0 if fault == "decay" else 0.0
    if kind == "adam":
        eps = 100.0 if fault == "eps" else 1e-8
        betas = (0.9999, 0.999) if fault == "betas" else (0.9, 0.999)
        return torch.optim.AdamW(parameters, lr=rate, eps=eps, betas=betas, weight_decay=decay)
    momentum = 0.9995 if fault == "momentum" else 0.9
    return torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=decay / 3)


def spoil(x, y, fault):
    """Put the fault into the data, as read from a file that was written so."""
    if fault == "raw pixels":
        x = (60 * x + 128).clamp(0, 255)
    elif fault == "far from zero":
        x = 3 * x + 400
    elif fault == "one feature is huge":
        x = x * torch.tensor([3e4] + [1.0] * (x.shape[-1] - 1))
    elif fault == "labels of others":
        y = y[torch.randperm(len(y))]
    elif fault == "a hole":
        x = x.clone()
        x[::40].view(len(x[::40]), -1)[:, 0] = float("nan")
    elif fault == "sorted":
        order = y.argsort(stable=True)
        x, y = x[order], y[order]
    return x, y


def prepare(model, fault):
    """Put the fault into the model."""
    layers = [one for one in model.modules() if isinstance(one, (nn.Linear, nn.Conv2d, nn.LSTM))]
    if fault == "initialisation":
        for one in layers:
            for weight in one.parameters():
                nn.init.normal_(weight, std=3.0)
    if fault == "frozen":
        for name, weight in model.named_parameters():
            if "head" not in name and weight is not list(model.parameters())[-1]:
                weight.requires_grad_(False)
    if fault in ("own backward", "detached") and isinstance(model, nn.Sequential):
        at = len(model) - 2
        model.insert(at, Gate() if fault == "own backward" else Cut())
        if fault == "own backward":
            for weight in model[-1].parameters():  # of a head that was trained before
                weight.requires_grad_(False)


def change(out, fault):
    """Put the fault between the model and its loss."""
    if fault == "softmax":
        return out.softmax(1)
    if fault == "sigmoid":
        return out.sigmoid()
    return 1e-5 * out if fault == "scale of the output" else out


def fit(model, optimizer, loss_of, loader, fault):
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7 if fault == "schedule" else 0.995)
    scaler = torch.amp.GradScaler("cpu", enabled=fault == "scaled")
    step = 0
    while step < STEPS:
        for batch, targets in loader:
            inputs = batch[torch.randperm(len(batch))] if fault == "rows" else batch
            loss = loss_of(change(model(inputs), fault), targets)
            if fault == "sign":
                loss = -loss
            if fault != "no zero_grad":
                optimizer.zero_grad()
            scaler.scale(loss).backward()
            if fault == "clip":
                nn.utils.clip_grad_norm_(model.parameters(), 1e-7)
            optimizer.step()
            schedule.step()
            step += 1
            if step >= STEPS:
                break


def show(out, y, criterion):
    """Print the metric of held-out samples."""
    if criterion is nn.MSELoss:
        print(f"METRIC {functional.mse_loss(out, y).item():.4f} lower")
    elif criterion is nn.BCEWithLogitsLoss:
        print(f"METRIC {((out > 0) == (y > 0.5)).float().mean().item():.4f} higher")
    else:
        print(f"METRIC {(out.argmax(1) == y).float().mean().item():.4f} higher")


def main(family, fault, seed):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    make, build, criterion, kind = FAMILIES[family]
    x, y = make(1600)
    x, y = spoil(x, y, fault)
    held_out = torch.arange(len(x)) % 4 == 0 if fault == "sorted" else torch.arange(len(x)) < 400
    model = build(0.98 if fault == "dropout" else 0.0)
    prepare(model, fault)
    parameters = list(model.parameters())
    held = parameters[-2:] if fault == "head only" else [one for one in parameters if one.requires_grad]
    optimizer = optimizer_of(kind, held, fault)
    smoothing = 0.97 if fault == "smoothing" else 0.0
    loss_of = criterion(label_smoothing=smoothing) if criterion is nn.CrossEntropyLoss else criterion()
    data = TensorDataset(x[~held_out], y[~held_out])
    fit(model, optimizer, loss_of, DataLoader(data, BATCH, shuffle=fault != "sorted", drop_last=True), fault)
    model.eval()
    with torch.no_grad():
        show(model(x[held_out].nan_to_num(0.0)), y[held_out], criterion)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
