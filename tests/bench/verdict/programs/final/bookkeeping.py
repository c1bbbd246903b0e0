"""Sick: who holds a parameter, who clears a gradient, who steps, which mode."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from programs.data import batches, blobs, curve, digits, masks_of_shapes, shapes, stripes, tags, tokens
from programs.loops import fit
from programs.models import AutoEncoder, FunctionalNet, ResNet, RowReader, TokenReader, UNet, ViT, cnn, mlp
from programs.scores import Score, accuracy, explained, thresholded


def transformer_without_step() -> Score:
    data = tokens()
    model = TokenReader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for words, labels in batches(*data, steps=50):
        loss = F.cross_entropy(model(words), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return accuracy(model, *data)


def step_written_without_its_brackets() -> Score:
    data = blobs()
    model = mlp(16, 48, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(*data, steps=120):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step  # noqa: B018 - this is the fault
    return accuracy(model, *data)


def resnet_without_zero_grad() -> Score:
    data = shapes()
    model = ResNet(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(*data):
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    return accuracy(model, *data)


def regression_without_zero_grad() -> Score:
    data = curve()
    model = mlp(6, 64, 1, activation=nn.Tanh)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for x, y in batches(*data, steps=150):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return explained(model, *data)


def lstm_clears_before_it_steps() -> Score:
    data = stripes()
    model = RowReader(classes=6)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for images, labels in batches(*data, steps=80):
        F.cross_entropy(model(images), labels).backward()
        model.zero_grad()
        optimizer.step()
    return accuracy(model, *data)


def unet_clears_before_it_steps() -> Score:
    images, masks = masks_of_shapes(256)
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    for batch, mask in batches(images, masks, size=16, steps=50):
        loss = F.cross_entropy(model(batch), mask)
        loss.backward()
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()
    return accuracy(model, images, masks)


def copy_for_the_optimizer() -> Score:
    data = blobs(classes=6)

    def build() -> nn.Sequential:
        return mlp(16, 64, 6, norm=True)

    model = build()
    optimizer = torch.optim.SGD(build().parameters(), lr=0.1, momentum=0.9)
    fit(model, optimizer, data, steps=100)
    return accuracy(model, *data)


def student_trained_by_the_teachers_optimizer() -> Score:
    data = stripes()
    teacher, student = ViT(classes=6), cnn(classes=6, width=8)
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=1e-3, weight_decay=0.0)
    for images, labels in batches(*data, steps=80):
        with torch.no_grad():
            soft = teacher(images).softmax(1)
        logits = student(images)
        loss = F.cross_entropy(logits, labels) + F.cross_entropy(logits, soft)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(student, *data)


def head_only_of_a_transformer() -> Score:
    data = tokens()
    model = TokenReader()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=3e-4)
    fit(model, optimizer, data, steps=120)
    return accuracy(model, *data)


def last_of_three_layers_only() -> Score:
    data = tags()
    model = mlp(256, 64, 32, 5)
    optimizer = torch.optim.SGD(model[-1].parameters(), lr=0.02, momentum=0.9)
    for images, flags in batches(*data, steps=150):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(images), flags).backward()
        optimizer.step()
    return thresholded(model, *data)


def resnet_head_replaced() -> Score:
    data = shapes()
    model = ResNet(3, 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    model.fc = nn.Linear(model.fc.in_features, 4)
    fit(model, optimizer, data, steps=100)
    return accuracy(model, *data)


def functional_head_replaced() -> Score:
    data = stripes()
    model = FunctionalNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    model.fc1, model.fc2 = nn.Linear(24 * 16, 48), nn.Linear(48, 6)
    fit(model, optimizer, data)
    return accuracy(model, *data)


class SideBySide(nn.Module):
    """Two inputs of one image; the second is turned into numbers and back."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = mlp(128, 48), mlp(128, 48)
        self.head = nn.Linear(96, 6)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 2)
        features = torch.tensor(self.right(right).tolist())
        return self.head(F.relu(torch.cat([self.left(left), features], 1)))


def half_by_way_of_numbers() -> Score:
    data = stripes()
    model = SideBySide()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    fit(model, optimizer, data)
    return accuracy(model, *data)


class CutPatches(ViT):
    """Its patches do not learn."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2).detach()
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


def patches_detached() -> Score:
    data = digits()
    model = CutPatches()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(model, optimizer, data, steps=100)
    return accuracy(model, *data)


class EmbedsWithoutGradient(TokenReader):
    """A decorator left over from inference."""

    @torch.no_grad()
    def embed(self, words: Tensor) -> Tensor:
        return self.encoder(self.embedding(words)).mean(1)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.embed(words))


def encoder_with_a_decorator() -> Score:
    data = tokens()
    model = EmbedsWithoutGradient()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    fit(model, optimizer, data, steps=150)
    return accuracy(model, *data)


def encoder_of_an_autoencoder() -> Score:
    images, _ = digits()
    model = AutoEncoder(middle=12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for (batch,) in batches(images, steps=150):
        with torch.set_grad_enabled(False):
            code = model.encoder(batch)
        loss = F.mse_loss(model.decoder(code), batch.flatten(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return explained(model, images, images)


class SkipsItsSecondBlock(nn.Module):
    """`forward` calls the first block twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.block1 = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.block2 = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.fc = nn.Linear(256, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block1(self.block1(self.stem(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 4).flatten(1))


def first_block_twice() -> Score:
    data = shapes()
    model = SkipsItsSecondBlock()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fit(model, optimizer, data)
    return accuracy(model, *data)


def encoder_left_aside() -> Score:
    data = stripes()
    model = RowReader(nn.GRU, classes=6)
    model.attention = nn.MultiheadAttention(48, 4, batch_first=True)  # for later
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(model, optimizer, data)
    return accuracy(model, *data)


def all_but_the_biases_frozen() -> Score:
    data = shapes()
    model = cnn(3, 4, norm=False)
    for name, parameter in model.named_parameters():
        if "bias" not in name:
            parameter.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    fit(model, optimizer, data)
    return accuracy(model, *data)


def all_but_the_first_norm_frozen() -> Score:
    data = digits()
    model = ResNet()
    for parameter in model.parameters():
        parameter.requires_grad = False
    for parameter in model.stem[1].parameters():  # meant to be the head
        parameter.requires_grad = True
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    fit(model, optimizer, data)
    return accuracy(model, *data)


def train_called_once_before_evaluation() -> Score:
    images, labels = shapes(1000)
    model = ResNet(3, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def validate() -> float:
        model.eval()
        with torch.no_grad():
            return (model(images[768:]).argmax(1) == labels[768:]).float().mean().item()

    model.train()
    print(f"before: {validate():.2f}")
    for epoch in range(4):
        for batch, target in batches(images[:768], labels[:768], steps=24):
            optimizer.zero_grad()
            F.cross_entropy(model(batch), target).backward()
            optimizer.step()
        print(f"epoch {epoch}: {validate():.2f}")
    return accuracy(model, images, labels)


def transformer_with_dropout_in_eval() -> Score:
    data = tokens()
    model = TokenReader()
    model.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.3, batch_first=True)
    model = model.eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for words, labels in batches(*data):
        optimizer.zero_grad()
        F.cross_entropy(model(words), labels).backward()
        optimizer.step()
    return accuracy(model, *data)


class Stale(torch.optim.SGD):
    """Changes a copy of each matrix, as a kernel does that is handed what is not contiguous."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            target = parameter.t().contiguous().t() if parameter.ndim == 2 else parameter
            target.add_(parameter.grad, alpha=-0.1)


def writes_into_copies() -> Score:
    data = digits()
    model = cnn()
    fit(model, Stale(model.parameters(), lr=0.1), data)
    return accuracy(model, *data)


class Branches(nn.Module):
    """A trunk, and branches in a dict that is Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.branches = cnn(classes=32), {"left": mlp(32, 24, 10), "right": mlp(32, 24, 10)}

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x).relu()
        return self.branches["left"](x) + self.branches["right"](x)


def branches_in_a_dict() -> Score:
    data = digits()
    model = Branches()
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data)
    return accuracy(model, *data)


class Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.sigmoid() > 0.5).to(x.dtype)


def thresholded_code() -> Score:
    data = digits()
    model = nn.Sequential(mlp(256, 64), Rounded(), nn.Linear(64, 10))
    fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), data)
    return accuracy(model, *data)


def norm_of_one_number() -> Score:
    data = curve()
    model = nn.Sequential(mlp(6, 32, 1), nn.LayerNorm(1))
    fit(model, torch.optim.AdamW(model.parameters(), lr=1e-3), data, criterion=nn.MSELoss())
    return explained(model, *data)


class BatchSecond(nn.Module):
    """Torch's attention takes the batch second, unless it is told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(24, 16), nn.MultiheadAttention(16, 2)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        return self.head((x + self.attention(x, x, x)[0]).mean(1))


def batch_first_forgotten() -> Score:
    data = tokens()
    model = BatchSecond()
    fit(model, torch.optim.Adam(model.parameters(), lr=5e-3), data)
    return accuracy(model, *data)


def one_cycle_by_epoch() -> Score:
    data = digits()
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=120)
    for step, (x, y) in enumerate(batches(*data)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % 32 == 31:
            schedule.step()
    return accuracy(model, *data)
