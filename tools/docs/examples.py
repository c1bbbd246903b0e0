"""Examples on the pages of the rules: what breaks a rule, and for trainings what to write instead.

`tests/docs/test_rule_examples.py` runs all of them.
"""
# ruff: noqa: E501   the lines of a script stay whole

import ast
import difflib
from functools import cache

from tools.docs import ROOT

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
_MODEL = "model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))"
_NORM = (
    "model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))"
)
_OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)"
_LOSS = "    loss = F.cross_entropy(model(images[batch]), labels[batch])"
_BATCH = "    batch = torch.randint(64, (32,))"
_LABELS = "labels = (images[:, 0].mean((1, 2)) > 0).long() + 2 * (images[:, 1].mean((1, 2)) > 0).long()"
_STEP = "    optimizer.step()"
_END = "    loss.backward()\n    optimizer.step()"
_CLEAR = "    optimizer.zero_grad()\n"
_DEEP = (
    "layers = [layer for _ in range(6) for layer in (nn.Linear(192, 192), nn.GELU())]\n"
    "model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(192, 4))"
)
_BRANCH = "model = nn.Sequential(Features(nn.Conv2d(3, 8, 3), nn.ReLU()), nn.Flatten(), nn.Linear(288, 4))"
_ATTEND = (
    "\nclass Attend(nn.Module):\n    def forward(self, x):\n        return x + x.softmax({})\n\n\n"
    + _MODEL.replace("nn.Linear", "Attend(), nn.Linear")
)
_PHOTOS = """
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
_INDEX = """
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
_HELD_OUT = """
class HeldOut(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        time.sleep(0.02)  # such as decoding a large file
        return images[i]


held_out = torch.utils.data.DataLoader(HeldOut(), 8)
"""
_CHECK = (
    "\n    if step % {} == 0:\n        model.eval()\n        with torch.no_grad():\n"
    "            for unseen in held_out:\n                model(unseen)\n        model.train()"
)
_IMPORT = ("import torch\n", "import time\n\nimport torch\n")
_CACHED = ("import torch\n", "import functools\nimport time\n\nimport torch\n")
_AUTOENCODER = """
class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(192, 8), nn.Linear(4, 192)

    def forward(self, x):
        mean, log_std = self.encoder(x.flatten(1)).chunk(2, 1)
        drawn = self.decoder(mean + log_std.exp() * torch.randn_like(mean))
        return drawn, (mean**2 + (2 * log_std).exp() - 2 * log_std - 1).mean() / 2


model = Autoencoder()"""
_COLOURS = ("images = torch.randn(64, 3, 8, 8)", "images = torch.randn(64, 3, 1, 1).expand(64, 3, 8, 8)")
_ADAM = (_OPTIMIZER, "optimizer = torch.optim.Adam(model.parameters(), lr=0.01)")
_KL = "    drawn, kl = model(images[batch])\n    loss = F.mse_loss(drawn, images[batch].flatten(1)) + {} * kl"
_VALIDATE = (
    "\n    if step % 5 == 4:\n        model.eval()\n        with torch.no_grad():\n"
    "            validation_loss = F.cross_entropy(model(images), labels)\n        model.train()"
)
_SCALER = (_OPTIMIZER, _OPTIMIZER + '\nscaler = torch.amp.GradScaler("cpu", init_scale=4)')
_NOISY = """
class Noisy(torch.utils.data.Dataset):
    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return images[i] + 0.1 * torch.randn(3, 8, 8{}), labels[i]


loader = torch.utils.data.DataLoader(Noisy(), 8, shuffle=True, num_workers=2)
"""
_LONGER = ("range(60)", "range(200)")
_PAIRS = "    noisy = images[batch] + torch.randn(32, 3, 8, 8)\n"
_RANKS = (
    ("import torch\nfrom torch import nn", "import torch\nfrom torch import distributed, nn"),
    ("torch.manual_seed(0)", 'distributed.init_process_group("gloo")\ntorch.manual_seed(0)'),
    (_STEP, _STEP + "\n\ndistributed.barrier()\ndistributed.destroy_process_group()"),
)
_BACKWARD, _CLIP = "    loss.backward()\n", "    nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"
_REPLICAS = (_OPTIMIZER, "model = nn.parallel.DistributedDataParallel(model)\n" + _OPTIMIZER)
_OWN_BATCHES = ("for step in range(60):", "torch.manual_seed(distributed.get_rank())\nfor step in range(60):")
_FROM_LOADER = (
    (
        "for step in range(60):\n" + _BATCH,
        "for batch, targets in (pair for epoch in range(4) for pair in loader):",
    ),
    (_LOSS, "    loss = F.cross_entropy(model(batch), targets)"),
)

Edits = tuple[tuple[str, str], ...]

# By code: the edits of TRAINING that break the rule, then those that do it right; none where TRAINING does.
TRAININGS: dict[str, tuple[Edits, Edits]] = {
    "MS701": (
        (
            (
                _LOSS,
                "    shares = (1000 * model(images[batch])).softmax(1)\n"
                "    loss = -shares[range(32), labels[batch]].log().mean()",
            ),
        ),
        (),
    ),
    "MS702": (
        (
            (
                _MODEL,
                "\nclass Scale(nn.Module):\n    def forward(self, x):\n        return x / (x - x).std(1, keepdim=True)\n\n\n"
                + _MODEL.replace("nn.ReLU(),", "Scale(), nn.ReLU(),"),
            ),
        ),
        (
            (
                _MODEL,
                "\nclass Scale(nn.Module):\n    def forward(self, x):\n        return x / (x.std(1, keepdim=True) + 1e-5)\n\n\n"
                + _MODEL.replace("nn.ReLU(),", "Scale(), nn.ReLU(),"),
            ),
        ),
    ),
    "MS703": (
        ((_LOSS, _LOSS + "\n    loss = loss + F.mse_loss(model[3].bias, model[3].bias.detach()).sqrt()"),),
        (
            (
                _LOSS,
                _LOSS
                + "\n    loss = loss + (F.mse_loss(model[3].bias, model[3].bias.detach()) + 1e-8).sqrt()",
            ),
        ),
    ),
    "MS705": (
        ((_MODEL, _MODEL + "\nnn.init.constant_(model[0].bias, -10)"),),
        ((_MODEL, _MODEL + "\nnn.init.zeros_(model[0].bias)"),),
    ),
    "MS710": (((_OPTIMIZER, _OPTIMIZER.replace("0.05", "1e-8")),), ()),
    "MS711": (((_STEP + "\n", ""),), ()),
    "MS712": (
        ((_OPTIMIZER, "optimizer = torch.optim.SGD(model[0].parameters(), lr=0.05, momentum=0.9)"),),
        (),
    ),
    "MS713": (((_CLEAR, ""),), ()),
    "MS714": (
        ((_CLEAR, ""), (_END, "    loss.backward()\n    optimizer.zero_grad()\n    optimizer.step()")),
        (),
    ),
    "MS716": (
        ((_MODEL, _MODEL + "\nmodel[1].extra = nn.Linear(8, 8)"),),
        (),
    ),
    "MS717": (
        (
            (
                _MODEL,
                _NORM
                + "\nfor name, parameter in model.named_parameters():\n    parameter.requires_grad_(name == '1.bias')",
            ),
        ),
        (
            (
                _MODEL,
                _NORM
                + "\nfor name, parameter in model.named_parameters():\n    parameter.requires_grad_(name.startswith(('1', '4')))",
            ),
        ),
    ),
    "MS718": (((_MODEL, _NORM + "\nmodel.eval()"),), ((_MODEL, _NORM + "\nmodel.train()"),)),
    "MS719": (
        (
            (_OPTIMIZER, _OPTIMIZER + "\nscheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)"),
            (_END, _END + "\n    scheduler.step()"),
        ),
        (
            (_OPTIMIZER, _OPTIMIZER + "\nscheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)"),
            (_END, _END + "\n    scheduler.step()"),
        ),
    ),
    "MS720": (((_LOSS, _LOSS.replace("model(images[batch])", "model(images[batch]).softmax(1)")),), ()),
    "MS721": (((_LOSS, _LOSS.replace("model(images[batch])", "model(images[batch]).relu()")),), ()),
    "MS722": (((_LOSS, _LOSS.replace("= F", "= -F")),), ()),
    "MS723": (
        (
            (_LOSS, _LOSS.replace("labels[batch])", "labels[batch], reduction='sum')")),
            (_OPTIMIZER, _OPTIMIZER.replace("0.05", "0.5")),
        ),
        ((_LOSS, _LOSS.replace("labels[batch])", "labels[batch], reduction='mean')")),),
    ),
    "MS724": (
        (
            (_MODEL, _MODEL.replace("288, 4", "288, 1")),
            (_LOSS, "    loss = F.mse_loss(model(images[batch]), labels[batch].float())"),
        ),
        (
            (_MODEL, _MODEL.replace("288, 4", "288, 1")),
            (_LOSS, "    loss = F.mse_loss(model(images[batch]).squeeze(1), labels[batch].float())"),
        ),
    ),
    "MS725": (((_LABELS, "labels = torch.zeros(64, dtype=torch.long)"),), ()),
    "MS726": (((_LOSS, _LOSS.replace("images[batch])", "127 + 50 * images[batch])")),), ()),
    "MS727": (((_BATCH, "    images = torch.zeros(64, 3, 8, 8)\n" + _BATCH),), ()),
    "MS728": (
        ((_LABELS, _LABELS + "\nimages[5] = float('nan')"),),
        ((_LABELS, _LABELS + "\nimages = images.nan_to_num()"),),
    ),
    "MS731": (
        ((_MODEL, _MODEL + "\nnn.init.constant_(model[0].bias[:6], -10)"),),
        (),
    ),
    "MS735": (
        (
            (_LABELS, "labels = torch.randint(4, (64,))"),
            (_BATCH, "    labels = labels[torch.randperm(64)]\n" + _BATCH),
        ),
        (),
    ),
    "MS738": (((_LOSS, _LOSS.replace("F.cross_entropy", "F.nll_loss")),), ()),
    "MS741": (
        (
            (
                _END,
                "    loss.backward()\n    nn.utils.clip_grad_norm_(model.parameters(), 1e-6)\n    optimizer.step()",
            ),
        ),
        (
            (
                _END,
                "    loss.backward()\n    nn.utils.clip_grad_norm_(model.parameters(), 1)\n    optimizer.step()",
            ),
        ),
    ),
    "MS744": (
        ((_OPTIMIZER, _OPTIMIZER.replace("0.9)", "0.9, weight_decay=5)")),),
        ((_OPTIMIZER, _OPTIMIZER.replace("0.9)", "0.9, weight_decay=1e-4)")),),
    ),
    "MS747": (
        (
            (_MODEL, _MODEL + "\nbest = {name: value.clone() for name, value in model.state_dict().items()}"),
            (_END, _END + "\n    model.load_state_dict(best)"),
        ),
        (),
    ),
    "MS749": (
        (
            (
                _LOSS,
                "    scores = model(images[batch])\n    loss = F.cross_entropy(scores.sign() + 0 * scores, labels[batch])",
            ),
        ),
        (),
    ),
    "MS758": (
        (
            (
                _OPTIMIZER,
                _OPTIMIZER
                + "\nscheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=60)",
            ),
            (_END, _END + "\n    if step % 30 == 29:\n        scheduler.step()"),
        ),
        (
            (
                _OPTIMIZER,
                _OPTIMIZER
                + "\nscheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=60)",
            ),
            (_END, _END + "\n    scheduler.step()"),
        ),
    ),
    "MS761": (
        (
            (_BATCH, "    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)\n" + _BATCH),
            (_OPTIMIZER + "\n\n", "\n"),
        ),
        (),
    ),
    "MS764": (
        ((_MODEL, _MODEL.replace("nn.Flatten()", "nn.Dropout(0.99), nn.Flatten()")),),
        ((_MODEL, _MODEL.replace("nn.Flatten()", "nn.Dropout(0.2), nn.Flatten()")),),
    ),
    "MS704": (
        ((_BATCH, "    if step == 40:\n        optimizer.param_groups[0]['lr'] = 5\n" + _BATCH),),
        ((_BATCH, "    if step == 40:\n        optimizer.param_groups[0]['lr'] = 0.005\n" + _BATCH),),
    ),
    "MS706": (((_OPTIMIZER, _OPTIMIZER.replace("0.05", "2")),), ()),
    "MS707": (
        (
            (
                _MODEL,
                _DEEP.replace("nn.GELU", "nn.Tanh")
                + "\nfor layer in layers[::2]:\n    nn.init.normal_(layer.weight, std=0.001)",
            ),
        ),
        (
            (
                _MODEL,
                _DEEP.replace("nn.GELU", "nn.Tanh")
                + "\nfor layer in layers[::2]:\n    nn.init.xavier_uniform_(layer.weight)",
            ),
        ),
    ),
    "MS709": (((_OPTIMIZER, _OPTIMIZER.replace("0.05", "5")),), ()),
    "MS715": (
        (
            (
                _MODEL,
                "\nclass Features(nn.Sequential):\n    def forward(self, x):\n        return super().forward(x).detach()\n\n\n"
                + _BRANCH,
            ),
        ),
        (
            (
                _MODEL,
                "\nclass Features(nn.Sequential):\n    def forward(self, x):\n        return super().forward(x)\n\n\n"
                + _BRANCH,
            ),
        ),
    ),
    "MS729": (
        (
            (
                _MODEL,
                _MODEL + "\nnn.init.constant_(model[0].weight, 0.1)\nnn.init.constant_(model[3].weight, 0.1)",
            ),
        ),
        (
            (
                _MODEL,
                _MODEL
                + "\nnn.init.kaiming_normal_(model[0].weight)\nnn.init.xavier_uniform_(model[3].weight)",
            ),
        ),
    ),
    "MS730": (
        (
            (
                _MODEL,
                _DEEP.replace("nn.GELU", "nn.Tanh")
                + "\nfor layer in layers[::2]:\n    nn.init.normal_(layer.weight, std=10)",
            ),
        ),
        (
            (
                _MODEL,
                _DEEP.replace("nn.GELU", "nn.Tanh")
                + "\nfor layer in layers[::2]:\n    nn.init.xavier_uniform_(layer.weight)",
            ),
        ),
    ),
    "MS732": (((_MODEL, _NORM), (_BATCH, "    batch = torch.randint(64, (1,))")), ((_MODEL, _NORM),)),
    "MS733": (
        (
            (
                _LOSS,
                "    with torch.autocast('cpu', torch.float16):\n    " + _LOSS + "\n    loss = 1e6 * loss",
            ),
        ),
        ((_LOSS, "    with torch.autocast('cpu', torch.bfloat16):\n    " + _LOSS),),
    ),
    "MS739": (
        (
            (
                _MODEL,
                _DEEP.replace("nn.GELU", "nn.ReLU")
                + "\nfor layer in layers[::2]:\n    nn.init.normal_(layer.weight, std=1)",
            ),
        ),
        (
            (
                _MODEL,
                _DEEP.replace("nn.GELU", "nn.ReLU")
                + "\nfor layer in layers[::2]:\n    nn.init.kaiming_normal_(layer.weight)",
            ),
        ),
    ),
    "MS740": (((_MODEL, _DEEP.replace("nn.GELU", "nn.Sigmoid")),), ((_MODEL, _DEEP),)),
    "MS743": (
        ((_MODEL, _NORM), (_END, _END + _VALIDATE.replace("model.eval()", "model.train()"))),
        ((_MODEL, _NORM), (_END, _END + _VALIDATE)),
    ),
    "MS755": (
        (
            (_MODEL, _MODEL.replace("288, 4)", "288, 1), nn.Softmax(1)")),
            (_LOSS, "    loss = F.mse_loss(model(images[batch]).squeeze(1), (labels[batch] > 1).float())"),
        ),
        (
            (_MODEL, _MODEL.replace("288, 4)", "288, 1), nn.Sigmoid()")),
            (_LOSS, "    loss = F.mse_loss(model(images[batch]).squeeze(1), (labels[batch] > 1).float())"),
        ),
    ),
    "MS760": (
        ((_END, _END + _VALIDATE.replace("model(images)", "model(127 + 50 * images)")),),
        ((_END, _END + _VALIDATE),),
    ),
    "MS762": (
        (
            (
                _END,
                "    loss.backward()\n    gradients = gradients if step else [p.grad.clone() for p in model.parameters()]\n    for parameter, gradient in zip(model.parameters(), gradients):\n        parameter.grad = gradient.clone()\n    optimizer.step()",
            ),
        ),
        (),
    ),
    "MS763": (
        (
            (_OPTIMIZER, _OPTIMIZER + "\naveraged = torch.optim.swa_utils.AveragedModel(model)"),
            (_END, _END + _VALIDATE.replace("model", "averaged")),
        ),
        (
            (_OPTIMIZER, _OPTIMIZER + "\naveraged = torch.optim.swa_utils.AveragedModel(model)"),
            (_END, _END + "\n    averaged.update_parameters(model)" + _VALIDATE.replace("model", "averaged")),
        ),
    ),
    "MS708": (
        (
            (
                _MODEL,
                _DEEP.replace("nn.GELU", "nn.ReLU")
                + "\nfor layer in layers[::2]:\n    nn.init.normal_(layer.weight, std=1)",
            ),
            (_OPTIMIZER, _OPTIMIZER.replace("0.05", "1e-14")),
        ),
        (
            (
                _MODEL,
                _DEEP.replace("nn.GELU", "nn.ReLU")
                + "\nfor layer in layers[::2]:\n    nn.init.kaiming_normal_(layer.weight)",
            ),
        ),
    ),
    "MS736": (
        (
            (_LABELS, "labels = (torch.arange(64) % 32 == 0).long()"),
            (_BATCH, "    images = torch.randn(64, 3, 8, 8)\n" + _BATCH),
        ),
        (
            (_LABELS, "labels = (torch.arange(64) % 32 == 0).long()"),
            (_LOSS, _LOSS.replace("labels[batch])", "labels[batch], weight=torch.tensor([1.0, 31, 0, 0]))")),
        ),
    ),
    "MS737": (
        (
            (
                _OPTIMIZER,
                _OPTIMIZER
                + "\nhead = nn.Linear(288, 4)\nof_head = torch.optim.SGD(head.parameters(), lr=0.05)",
            ),
            (_END, _END + "\n    of_head.step()"),
        ),
        (),
    ),
    "MS742": (
        ((_END, _END + _VALIDATE.replace("labels", "(labels + 1) % 4")),),
        ((_END, _END + _VALIDATE),),
    ),
    "MS745": (
        (_SCALER, (_END, "    scaler.scale(loss).backward()\n    optimizer.step()")),
        (
            _SCALER,
            (_END, "    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()"),
        ),
    ),
    "MS757": (
        (_LONGER, (_LOSS, _PAIRS + "    loss = F.mse_loss(model(images[batch]), model(noisy))")),
        (
            _LONGER,
            (
                _LOSS,
                _PAIRS
                + "    a, b = F.normalize(model(images[batch])), F.normalize(model(noisy))\n"
                + "    loss = F.cross_entropy(10 * a @ b.T, torch.arange(32))",
            ),
        ),
    ),
    "MS748": (
        ((_MODEL, _NOISY.format(", generator=self.generator") + _MODEL), *_FROM_LOADER),
        ((_MODEL, _NOISY.format("") + _MODEL), *_FROM_LOADER),
    ),
    "MS756": (
        (_LONGER, _COLOURS, (_MODEL, _AUTOENCODER), _ADAM, (_LOSS, _KL.format(10))),
        (_LONGER, _COLOURS, (_MODEL, _AUTOENCODER), _ADAM, (_LOSS, _KL.format(0.001))),
    ),
    "MS759": (((_MODEL, _ATTEND.format(0)),), ((_MODEL, _ATTEND.format(1)),)),
    "MS771": (
        (_IMPORT, (_MODEL, _PHOTOS.format("") + _MODEL), *_FROM_LOADER),
        (_CACHED, (_MODEL, _PHOTOS.format("@functools.cache\n") + _MODEL), *_FROM_LOADER),
    ),
    "MS772": (
        (_IMPORT, (_MODEL, _HELD_OUT + _MODEL), (_END, _END + _CHECK.format(2))),
        (_IMPORT, (_MODEL, _HELD_OUT + _MODEL), (_END, _END + _CHECK.format(20))),
    ),
    "MS773": (
        (_IMPORT, (_MODEL, _INDEX.format("[]") + _MODEL), *_FROM_LOADER),
        (_IMPORT, (_MODEL, _INDEX.format("list_files()") + _MODEL), *_FROM_LOADER),
    ),
}
# The same of two processes.
RANKS: dict[str, tuple[Edits, Edits]] = {
    "MS734": ((*_RANKS, _REPLICAS), (*_RANKS, _REPLICAS, _OWN_BATCHES)),
    "MS746": (
        (
            *(*_RANKS, _REPLICAS, _OWN_BATCHES),
            (_BACKWARD, _BACKWARD + "    if distributed.get_rank() == 0:\n    " + _CLIP),
        ),
        (*_RANKS, _REPLICAS, _OWN_BATCHES, (_BACKWARD, _BACKWARD + _CLIP)),
    ),
}


# By code: what makes the data set `photos`, two classes of eight images each, break the rule.
IMAGES = """\
from pathlib import Path
from PIL import Image


def noise(seed, size=(96, 96)):
    image = Image.effect_noise((12, 12), 90 + seed).resize(size)
    return Image.merge("RGB", [image.rotate(90 * n) for n in range(3)])


for n in range(16):
    file = Path("photos") / ("cat" if n < 8 else "dog") / f"{n}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    noise(n).save(file)
"""
DATA_SETS = {
    "MS801": 'Path("photos/cat/broken.png").write_bytes(b"not an image")',
    "MS802": 'Path("photos/cat/copy.png").write_bytes(Path("photos/cat/0.png").read_bytes())',
    "MS803": 'noise(0).save("photos/cat/copy.jpg", quality=60)\nImage.open("photos/cat/1.png").save("photos/cat/1.jpg")',
    "MS804": 'Path("val/cat").mkdir(parents=True)\n'
    'Path("val/cat/leak.png").write_bytes(Path("photos/cat/0.png").read_bytes())',
    "MS805": 'Path("photos/dog/copy.png").write_bytes(Path("photos/cat/0.png").read_bytes())',
    "MS806": 'noise(50, (960, 960)).save("photos/cat/large.png")',
    "MS807": 'noise(50, (960, 96)).save("photos/cat/wide.png")',
    "MS808": 'noise(50).point(lambda value: value // 32).save("photos/cat/dark.png")',
    "MS809": 'Image.new("RGB", (96, 96), "white").save("photos/cat/white.png")',
    "MS810": """\
from PIL import ImageFilter

image = Image.new("RGB", (96, 96), "black")
image.paste("white", (0, 0, 48, 96))
image.filter(ImageFilter.GaussianBlur(12)).save("photos/cat/blurred.png")""",
    "MS811": 'Path("val/bird").mkdir(parents=True)\nnoise(50).save("val/bird/0.png")',
}


def change(code: str) -> str:
    """Return the lines to change in the training, as a diff."""
    wrong, right = (written(edits).splitlines() for edits in (TRAININGS | RANKS)[code])
    lines = list(difflib.unified_diff(wrong, right, lineterm="", n=1))[2:]
    return "\n".join("" if line.startswith("@@") else line for line in lines).strip("\n")


@cache
def injuries() -> dict[str, str]:
    """Return by code the function of `tests/rules/sick.py` that breaks the rule, with those that it calls."""
    source = (ROOT / "tests" / "rules" / "sick.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    parts = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    texts = {}
    variants = next(node.value for node in tree.body if isinstance(node, ast.Assign))
    assert isinstance(variants, ast.List)
    for row in variants.elts:
        assert isinstance(row, ast.Tuple)
        code, name = ast.literal_eval(row.elts[0]), ast.unparse(row.elts[1])
        if code not in texts and name != "itself":
            texts[code] = "\n\n\n".join(_with_helpers(source, parts, name))
    return texts


def _with_helpers(source: str, parts: dict[str, ast.stmt], name: str) -> list[str]:
    text = ast.get_source_segment(source, parts[name]) or ""
    names = [node.id for node in ast.walk(parts[name]) if isinstance(node, ast.Name)]
    helpers = [one for one in dict.fromkeys(names) if one in parts and one != name]
    return [*(ast.get_source_segment(source, parts[one]) or "" for one in helpers), text]


def written(edits: Edits) -> str:
    """Return the training with lines replaced.

    Raises:
        ValueError: a line is not in it.
    """
    text = TRAINING
    for old, new in edits:
        if old not in text:
            raise ValueError(f"not in the training: {old}")
        text = text.replace(old, new, 1)
    return text.replace("'", '"')
