"""Examples on the pages of the rules: what breaks a rule, and for trainings what to write instead.

`tests/docs/test_rule_examples.py` runs all of them.
"""
# ruff: noqa: E501   the lines of a script stay whole

import difflib

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
_VALIDATE = (
    "\n    if step % 5 == 4:\n        model.eval()\n        with torch.no_grad():\n"
    "            validation_loss = F.cross_entropy(model(images), labels)\n        model.train()"
)
_SCALER = (_OPTIMIZER, _OPTIMIZER + '\nscaler = torch.amp.GradScaler("cpu", init_scale=4)')
_LONGER = ("range(60)", "range(200)")
_PAIRS = "    noisy = images[batch] + torch.randn(32, 3, 8, 8)\n"
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
    "MS716": (((_MODEL, _MODEL + "\nmodel[1].extra = nn.Linear(8, 8)"),), ()),
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
    "MS731": (((_MODEL, _MODEL + "\nnn.init.constant_(model[0].bias[:6], -10)"),), ()),
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
    "MS765": (
        (
            (
                _OPTIMIZER,
                "saved = {f'module.{name}': x for name, x in model.state_dict().items()}\nmodel.load_state_dict(saved, strict=False)\n"
                + _OPTIMIZER,
            ),
        ),
        (
            (
                _OPTIMIZER,
                "saved = {f'module.{name}': x for name, x in model.state_dict().items()}\nmodel.load_state_dict({name.removeprefix('module.'): x for name, x in saved.items()})\n"
                + _OPTIMIZER,
            ),
        ),
    ),
    "MS766": (((_OPTIMIZER, _OPTIMIZER.replace("0.9", "1.0")),), ()),
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
            (_OPTIMIZER, _OPTIMIZER.replace("0.05", "0.1")),
        ),
        (
            (
                _MODEL,
                _DEEP.replace("nn.GELU", "nn.Tanh")
                + "\nfor layer in layers[::2]:\n    nn.init.xavier_uniform_(layer.weight)",
            ),
            (_OPTIMIZER, _OPTIMIZER.replace("0.05", "0.1")),
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
    "MS742": (((_END, _END + _VALIDATE.replace("labels", "(labels + 1) % 4")),), ((_END, _END + _VALIDATE),)),
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
    "MS759": (((_MODEL, _ATTEND.format(0)),), ((_MODEL, _ATTEND.format(1)),)),
}


def change(wrong_and_right: tuple[Edits, Edits]) -> str:
    """Return the lines to change in the training, as a diff: with the lines around them where none is replaced."""
    wrong, right = (written(edits).splitlines() for edits in wrong_and_right)
    kinds = {kind for kind, *_ in difflib.SequenceMatcher(None, wrong, right).get_opcodes()}
    n_around = 0 if kinds <= {"equal", "replace"} else 1
    lines = list(difflib.unified_diff(wrong, right, lineterm="", n=n_around))[2:]
    return "\n".join("" if line.startswith("@@") else line for line in lines).strip("\n")


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
