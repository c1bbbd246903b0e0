"""Trainings on a device, each as someone writes them; the device is the first argument."""

BEGIN = """
import sys
import torch
from torch import nn
import torch.nn.functional as F

device = torch.device(sys.argv[1])
other = torch.device("stand:1") if device.type == "stand" else device
torch.manual_seed(0)
draw = torch.Generator().manual_seed(1)
IMAGES = torch.randn(64, 3, 16, 16, generator=draw)
LABELS = (IMAGES.mean((1, 2, 3)) > 0).long() + 2 * (IMAGES[:, 0].mean((1, 2)) > 0).long()


def net(has_norm=True):
    norm = nn.BatchNorm2d(8) if has_norm else nn.Identity()
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), norm, nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )


def batches(n):
    for _ in range(n):
        rows = torch.randint(64, (16,), generator=draw)
        yield IMAGES[rows].to(device), LABELS[rows].to(device)
"""
TRAININGS = {
    "healthy": """
model = net().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
for images, labels in batches(20):
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
model.eval()
with torch.no_grad():
    (model(IMAGES.to(device)).argmax(1).cpu() == LABELS).sum().item()
""",
    "sick: gradients are never cleared, softmax before the loss": """
model = nn.Sequential(net(), nn.Softmax(1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
for images, labels in batches(30):
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
""",
    "sick: the loss becomes NaN": """
model = net(has_norm=False).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e9)
for images, labels in batches(20):
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "sick: frozen and dead layers": """
model = net().to(device)
with torch.no_grad():
    model[3].bias.fill_(-100)
slow = {"params": model[7].parameters(), "lr": 1e-8}
optimizer = torch.optim.SGD([{"params": model[0].parameters()}, slow], lr=0.1)
for images, labels in batches(30):
    loss = F.cross_entropy(model(255 * images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "bfloat16": """
model = net().to(device, torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for images, labels in batches(12):
    loss = F.cross_entropy(model(images.bfloat16()).float(), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "pinned memory, and copies that do not block": """
data = torch.utils.data.TensorDataset(IMAGES, LABELS)
loader = torch.utils.data.DataLoader(data, 16, shuffle=True, generator=draw, pin_memory=device.type != "cpu")
model, criterion = net().to(device), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    model.train()
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=False)
        criterion(model(images), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for images, labels in loader:
            criterion(model(images.to(device, non_blocking=True)), labels.to(device)).item()
""",
    "two models on two devices": """
whole = net()
body, head = whole[:4].to(device), whole[4:].to(other)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
for images, labels in batches(20):
    loss = F.cross_entropy(head(body(images).to(other)), labels.to(other))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "one model on two devices": """
class Split(nn.Module):
    def __init__(self):
        super().__init__()
        whole = net()
        self.body, self.head = whole[:4].to(device), whole[4:].to(other)

    def forward(self, x):
        return self.head(self.body(x).to(other))

model = Split()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for images, labels in batches(20):
    loss = F.cross_entropy(model(images), labels.to(other))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.1)
    optimizer.step()
""",
    "a part on meta": """
class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.unused = net().to(device), nn.Linear(1000, 1000, device="meta")

    def forward(self, x):
        return self.net(x)

model = Partly()
optimizer = torch.optim.SGD(model.net.parameters(), lr=0.1)
for images, labels in batches(20):
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "closures, as Lightning calls them, and accumulated gradients": """
class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch):
        return F.mse_loss(self.net(batch[0]), F.one_hot(batch[1], 4).float())

module, average = Module().to(device), torch.optim.swa_utils.AveragedModel(net().to(device))
optimizer = torch.optim.RMSprop(module.parameters(), lr=1e-3)
for first, second in zip(batches(15), batches(15)):
    def closure():
        optimizer.zero_grad()
        (module.training_step(first) / 2).backward()
        loss = module.training_step(second) / 2
        loss.backward()
        return loss

    optimizer.step(closure)
    average.update_parameters(module.net)
""",
    "two optimizers": """
make = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 768), nn.Tanh(), nn.Unflatten(1, (3, 16, 16)))
make, judge = make.to(device), nn.Sequential(net(), nn.Linear(4, 1)).to(device)
a, b = (torch.optim.Adam(model.parameters(), lr=2e-4) for model in (make, judge))
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(16, 1, device=device), torch.zeros(16, 1, device=device)
for images, _ in batches(12):
    noise = torch.randn(16, 8, generator=draw).to(device)
    a.zero_grad()
    bce(judge(make(noise)), ones).backward()
    a.step()
    b.zero_grad()
    ((bce(judge(images), ones) + bce(judge(make(noise).detach()), zeros)) / 2).backward()
    b.step()
""",
    "a sequence model": """
class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16, padding_idx=0), nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.body, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(16, 20)

    def forward(self, x):
        y = self.words(x) + self.places(torch.arange(12, device=x.device))
        mask = nn.Transformer.generate_square_subsequent_mask(12, device=x.device)
        return self.head(self.body(y, mask=mask, is_causal=True))

model = Language().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(12):
    x = torch.randint(1, 20, (8, 13), generator=draw).to(device)
    loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
}
# Autocast of the CPU and of an accelerator choose bfloat16 for other operators, so numbers differ by its rounding.
AUTOCAST = """
model = net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler(device.type, init_scale=2.0**8)
for images, labels in batches(20):
    with torch.autocast(device.type, torch.bfloat16):
        loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
