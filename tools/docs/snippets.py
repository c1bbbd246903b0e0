"""The training of the examples of rules, and the lines that edits replace or put in."""

TRAINING = """\
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
images = torch.randn(64, 3, 8, 8)
labels = (images[:, 0].mean((1, 2)) > 0).long() + 2 * (images[:, 1].mean((1, 2)) > 0).long()

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for step in range(60):
    batch = torch.randint(64, (32,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images[batch]), labels[batch])
    loss.backward()
    optimizer.step()
"""
MODEL = "model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))"
NORM = (
    "model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))"
)
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)"
LOSS = "    loss = F.cross_entropy(model(images[batch]), labels[batch])"
BATCH = "    batch = torch.randint(64, (32,))"
LABELS = "labels = (images[:, 0].mean((1, 2)) > 0).long() + 2 * (images[:, 1].mean((1, 2)) > 0).long()"
STEP = "    optimizer.step()"
END = "    loss.backward()\n    optimizer.step()"
CLEAR = "    optimizer.zero_grad()\n"
DEEP = (
    "layers = [layer for _ in range(6) for layer in (nn.Linear(192, 192), nn.GELU())]\n"
    "model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(192, 4))"
)
BRANCH = "model = nn.Sequential(Features(nn.Conv2d(3, 8, 3), nn.ReLU()), nn.Flatten(), nn.Linear(288, 4))"
ATTEND = (
    "\nclass Attend(nn.Module):\n    def forward(self, x):\n        return x + x.softmax({})\n\n\n"
    + MODEL.replace("nn.Linear", "Attend(), nn.Linear")
)
PHOTOS = """
{}def photo(i):
    time.sleep(0.05)  # such as decoding a large file
    return images[i], labels[i]


class Photos(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return photo(i)


loader = torch.utils.data.DataLoader(Photos(), 8, shuffle=True)
"""
INDEX = """
class Indexed(torch.utils.data.Dataset):
    def __init__(self):
        self.index = {}

    def __len__(self):
        return 64

    def __getitem__(self, i):
        self.index = self.index or list_files()
        return images[self.index[i]], labels[self.index[i]]


def list_files():
    time.sleep(8)  # such as reading the names of a million files
    return list(range(64))


loader = torch.utils.data.DataLoader(Indexed(), 8, shuffle=True)
"""
HELD_OUT = """
class HeldOut(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        time.sleep(0.02)  # such as decoding a large file
        return images[i]


held_out = torch.utils.data.DataLoader(HeldOut(), 8)
"""
CHECK = (
    "\n    if step % {} == 0:\n        model.eval()\n        with torch.no_grad():\n"
    "            for unseen in held_out:\n                model(unseen)\n        model.train()"
)
IMPORT = ("import torch\n", "import time\n\nimport torch\n")
CACHED = ("import torch\n", "import functools\nimport time\n\nimport torch\n")
AUTOENCODER = """
class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(192, 8), nn.Linear(4, 192)

    def forward(self, x):
        mean, log_std = self.encoder(x.flatten(1)).chunk(2, 1)
        drawn = self.decoder(mean + log_std.exp() * torch.randn_like(mean))
        return drawn, (mean**2 + (2 * log_std).exp() - 2 * log_std - 1).mean() / 2


model = Autoencoder()"""
COLOURS = ("images = torch.randn(64, 3, 8, 8)", "images = torch.randn(64, 3, 1, 1).expand(64, 3, 8, 8)")
ADAM = (OPTIMIZER, "optimizer = torch.optim.Adam(model.parameters(), lr=0.01)")
KL = "    drawn, kl = model(images[batch])\n    loss = F.mse_loss(drawn, images[batch].flatten(1)) + {} * kl"
VALIDATE = (
    "\n    if step % 5 == 4:\n        model.eval()\n        with torch.no_grad():\n"
    "            validation_loss = F.cross_entropy(model(images), labels)\n        model.train()"
)
SCALER = (OPTIMIZER, OPTIMIZER + '\nscaler = torch.amp.GradScaler("cpu", init_scale=4)')
NOISY = """
class Noisy(torch.utils.data.Dataset):
    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return images[i] + 0.1 * torch.randn(3, 8, 8{}), labels[i]


loader = torch.utils.data.DataLoader(Noisy(), 8, shuffle=True, num_workers=2)
"""
LONGER = ("range(60)", "range(200)")
PAIRS = "    noisy = images[batch] + torch.randn(32, 3, 8, 8)\n"
RANKS = (
    ("import torch\nfrom torch import nn", "import torch\nfrom torch import distributed, nn"),
    ("torch.manual_seed(0)", 'distributed.init_process_group("gloo")\ntorch.manual_seed(0)'),
    (STEP, STEP + "\n\ndistributed.barrier()\ndistributed.destroy_process_group()"),
)
BACKWARD, CLIP = "    loss.backward()\n", "    nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"
REPLICAS = (OPTIMIZER, "model = nn.parallel.DistributedDataParallel(model)\n" + OPTIMIZER)
OWN_BATCHES = ("for step in range(60):", "torch.manual_seed(distributed.get_rank())\nfor step in range(60):")
FROM_LOADER = (
    (
        "for step in range(60):\n" + BATCH,
        "for batch, targets in (pair for epoch in range(4) for pair in loader):",
    ),
    (LOSS, "    loss = F.cross_entropy(model(batch), targets)"),
)
