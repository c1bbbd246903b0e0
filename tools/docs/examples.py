"""Examples on the pages of the rules: what breaks a rule, and for trainings what to write instead.

`tests/docs/test_rule_examples.py` runs all of them.
"""
# ruff: noqa: E501   the lines of a script stay whole

import difflib

from tools.docs.snippets import (
    ADAM,
    ATTEND,
    AUTOENCODER,
    BACKWARD,
    BATCH,
    BRANCH,
    CACHED,
    CHECK,
    CLEAR,
    CLIP,
    COLOURS,
    DEEP,
    END,
    FROM_LOADER,
    HELD_OUT,
    IMPORT,
    INDEX,
    KL,
    LABELS,
    LONGER,
    LOSS,
    MODEL,
    NOISY,
    NORM,
    OPTIMIZER,
    OWN_BATCHES,
    PAIRS,
    PHOTOS,
    RANKS,
    REPLICAS,
    SCALER,
    STEP,
    TRAINING,
    VALIDATE,
)

Edits = tuple[tuple[str, str], ...]

# By code: the edits of TRAINING that break the rule, then those that do it right; none where TRAINING does.
TRAININGS: dict[str, tuple[Edits, Edits]] = {
    "MS701": (
        (
            (
                LOSS,
                "    shares = (1000 * model(images[batch])).softmax(1)\n"
                "    loss = -shares[range(32), labels[batch]].log().mean()",
            ),
        ),
        (),
    ),
    "MS702": (
        (
            (
                MODEL,
                "\nclass Scale(nn.Module):\n    def forward(self, x):\n        return x / (x - x).std(1, keepdim=True)\n\n\n"
                + MODEL.replace("nn.ReLU(),", "Scale(), nn.ReLU(),"),
            ),
        ),
        (
            (
                MODEL,
                "\nclass Scale(nn.Module):\n    def forward(self, x):\n        return x / (x.std(1, keepdim=True) + 1e-5)\n\n\n"
                + MODEL.replace("nn.ReLU(),", "Scale(), nn.ReLU(),"),
            ),
        ),
    ),
    "MS703": (
        ((LOSS, LOSS + "\n    loss = loss + F.mse_loss(model[3].bias, model[3].bias.detach()).sqrt()"),),
        (
            (
                LOSS,
                LOSS
                + "\n    loss = loss + (F.mse_loss(model[3].bias, model[3].bias.detach()) + 1e-8).sqrt()",
            ),
        ),
    ),
    "MS705": (
        ((MODEL, MODEL + "\nnn.init.constant_(model[0].bias, -10)"),),
        ((MODEL, MODEL + "\nnn.init.zeros_(model[0].bias)"),),
    ),
    "MS710": (((OPTIMIZER, OPTIMIZER.replace("0.05", "1e-8")),), ()),
    "MS711": (((STEP + "\n", ""),), ()),
    "MS712": (
        ((OPTIMIZER, "optimizer = torch.optim.SGD(model[0].parameters(), lr=0.05, momentum=0.9)"),),
        (),
    ),
    "MS713": (((CLEAR, ""),), ()),
    "MS714": (
        ((CLEAR, ""), (END, "    loss.backward()\n    optimizer.zero_grad()\n    optimizer.step()")),
        (),
    ),
    "MS716": (
        ((MODEL, MODEL + "\nmodel[1].extra = nn.Linear(8, 8)"),),
        (),
    ),
    "MS717": (
        (
            (
                MODEL,
                NORM
                + "\nfor name, parameter in model.named_parameters():\n    parameter.requires_grad_(name == '1.bias')",
            ),
        ),
        (
            (
                MODEL,
                NORM
                + "\nfor name, parameter in model.named_parameters():\n    parameter.requires_grad_(name.startswith(('1', '4')))",
            ),
        ),
    ),
    "MS718": (((MODEL, NORM + "\nmodel.eval()"),), ((MODEL, NORM + "\nmodel.train()"),)),
    "MS719": (
        (
            (OPTIMIZER, OPTIMIZER + "\nscheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)"),
            (END, END + "\n    scheduler.step()"),
        ),
        (
            (OPTIMIZER, OPTIMIZER + "\nscheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)"),
            (END, END + "\n    scheduler.step()"),
        ),
    ),
    "MS720": (((LOSS, LOSS.replace("model(images[batch])", "model(images[batch]).softmax(1)")),), ()),
    "MS721": (((LOSS, LOSS.replace("model(images[batch])", "model(images[batch]).relu()")),), ()),
    "MS722": (((LOSS, LOSS.replace("= F", "= -F")),), ()),
    "MS723": (
        (
            (LOSS, LOSS.replace("labels[batch])", "labels[batch], reduction='sum')")),
            (OPTIMIZER, OPTIMIZER.replace("0.05", "0.5")),
        ),
        ((LOSS, LOSS.replace("labels[batch])", "labels[batch], reduction='mean')")),),
    ),
    "MS724": (
        (
            (MODEL, MODEL.replace("288, 4", "288, 1")),
            (LOSS, "    loss = F.mse_loss(model(images[batch]), labels[batch].float())"),
        ),
        (
            (MODEL, MODEL.replace("288, 4", "288, 1")),
            (LOSS, "    loss = F.mse_loss(model(images[batch]).squeeze(1), labels[batch].float())"),
        ),
    ),
    "MS725": (((LABELS, "labels = torch.zeros(64, dtype=torch.long)"),), ()),
    "MS726": (((LOSS, LOSS.replace("images[batch])", "127 + 50 * images[batch])")),), ()),
    "MS727": (((BATCH, "    images = torch.zeros(64, 3, 8, 8)\n" + BATCH),), ()),
    "MS728": (
        ((LABELS, LABELS + "\nimages[5] = float('nan')"),),
        ((LABELS, LABELS + "\nimages = images.nan_to_num()"),),
    ),
    "MS731": (
        ((MODEL, MODEL + "\nnn.init.constant_(model[0].bias[:6], -10)"),),
        (),
    ),
    "MS735": (
        (
            (LABELS, "labels = torch.randint(4, (64,))"),
            (BATCH, "    labels = labels[torch.randperm(64)]\n" + BATCH),
        ),
        (),
    ),
    "MS738": (((LOSS, LOSS.replace("F.cross_entropy", "F.nll_loss")),), ()),
    "MS741": (
        (
            (
                END,
                "    loss.backward()\n    nn.utils.clip_grad_norm_(model.parameters(), 1e-6)\n    optimizer.step()",
            ),
        ),
        (
            (
                END,
                "    loss.backward()\n    nn.utils.clip_grad_norm_(model.parameters(), 1)\n    optimizer.step()",
            ),
        ),
    ),
    "MS744": (
        ((OPTIMIZER, OPTIMIZER.replace("0.9)", "0.9, weight_decay=5)")),),
        ((OPTIMIZER, OPTIMIZER.replace("0.9)", "0.9, weight_decay=1e-4)")),),
    ),
    "MS747": (
        (
            (MODEL, MODEL + "\nbest = {name: value.clone() for name, value in model.state_dict().items()}"),
            (END, END + "\n    model.load_state_dict(best)"),
        ),
        (),
    ),
    "MS749": (
        (
            (
                LOSS,
                "    scores = model(images[batch])\n    loss = F.cross_entropy(scores.sign() + 0 * scores, labels[batch])",
            ),
        ),
        (),
    ),
    "MS758": (
        (
            (
                OPTIMIZER,
                OPTIMIZER
                + "\nscheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=60)",
            ),
            (END, END + "\n    if step % 30 == 29:\n        scheduler.step()"),
        ),
        (
            (
                OPTIMIZER,
                OPTIMIZER
                + "\nscheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=60)",
            ),
            (END, END + "\n    scheduler.step()"),
        ),
    ),
    "MS761": (
        (
            (BATCH, "    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)\n" + BATCH),
            (OPTIMIZER + "\n\n", "\n"),
        ),
        (),
    ),
    "MS764": (
        ((MODEL, MODEL.replace("nn.Flatten()", "nn.Dropout(0.99), nn.Flatten()")),),
        ((MODEL, MODEL.replace("nn.Flatten()", "nn.Dropout(0.2), nn.Flatten()")),),
    ),
    "MS704": (
        ((BATCH, "    if step == 40:\n        optimizer.param_groups[0]['lr'] = 5\n" + BATCH),),
        ((BATCH, "    if step == 40:\n        optimizer.param_groups[0]['lr'] = 0.005\n" + BATCH),),
    ),
    "MS706": (((OPTIMIZER, OPTIMIZER.replace("0.05", "2")),), ()),
    "MS707": (
        (
            (
                MODEL,
                DEEP.replace("nn.GELU", "nn.Tanh")
                + "\nfor layer in layers[::2]:\n    nn.init.normal_(layer.weight, std=0.001)",
            ),
        ),
        (
            (
                MODEL,
                DEEP.replace("nn.GELU", "nn.Tanh")
                + "\nfor layer in layers[::2]:\n    nn.init.xavier_uniform_(layer.weight)",
            ),
        ),
    ),
    "MS709": (((OPTIMIZER, OPTIMIZER.replace("0.05", "5")),), ()),
    "MS715": (
        (
            (
                MODEL,
                "\nclass Features(nn.Sequential):\n    def forward(self, x):\n        return super().forward(x).detach()\n\n\n"
                + BRANCH,
            ),
        ),
        (
            (
                MODEL,
                "\nclass Features(nn.Sequential):\n    def forward(self, x):\n        return super().forward(x)\n\n\n"
                + BRANCH,
            ),
        ),
    ),
    "MS729": (
        (
            (
                MODEL,
                MODEL + "\nnn.init.constant_(model[0].weight, 0.1)\nnn.init.constant_(model[3].weight, 0.1)",
            ),
        ),
        (
            (
                MODEL,
                MODEL
                + "\nnn.init.kaiming_normal_(model[0].weight)\nnn.init.xavier_uniform_(model[3].weight)",
            ),
        ),
    ),
    "MS730": (
        (
            (
                MODEL,
                DEEP.replace("nn.GELU", "nn.Tanh")
                + "\nfor layer in layers[::2]:\n    nn.init.normal_(layer.weight, std=10)",
            ),
        ),
        (
            (
                MODEL,
                DEEP.replace("nn.GELU", "nn.Tanh")
                + "\nfor layer in layers[::2]:\n    nn.init.xavier_uniform_(layer.weight)",
            ),
        ),
    ),
    "MS732": (((MODEL, NORM), (BATCH, "    batch = torch.randint(64, (1,))")), ((MODEL, NORM),)),
    "MS733": (
        (
            (
                LOSS,
                "    with torch.autocast('cpu', torch.float16):\n    " + LOSS + "\n    loss = 1e6 * loss",
            ),
        ),
        ((LOSS, "    with torch.autocast('cpu', torch.bfloat16):\n    " + LOSS),),
    ),
    "MS739": (
        (
            (
                MODEL,
                DEEP.replace("nn.GELU", "nn.ReLU")
                + "\nfor layer in layers[::2]:\n    nn.init.normal_(layer.weight, std=1)",
            ),
        ),
        (
            (
                MODEL,
                DEEP.replace("nn.GELU", "nn.ReLU")
                + "\nfor layer in layers[::2]:\n    nn.init.kaiming_normal_(layer.weight)",
            ),
        ),
    ),
    "MS740": (((MODEL, DEEP.replace("nn.GELU", "nn.Sigmoid")),), ((MODEL, DEEP),)),
    "MS743": (
        ((MODEL, NORM), (END, END + VALIDATE.replace("model.eval()", "model.train()"))),
        ((MODEL, NORM), (END, END + VALIDATE)),
    ),
    "MS755": (
        (
            (MODEL, MODEL.replace("288, 4)", "288, 1), nn.Softmax(1)")),
            (LOSS, "    loss = F.mse_loss(model(images[batch]).squeeze(1), (labels[batch] > 1).float())"),
        ),
        (
            (MODEL, MODEL.replace("288, 4)", "288, 1), nn.Sigmoid()")),
            (LOSS, "    loss = F.mse_loss(model(images[batch]).squeeze(1), (labels[batch] > 1).float())"),
        ),
    ),
    "MS760": (
        ((END, END + VALIDATE.replace("model(images)", "model(127 + 50 * images)")),),
        ((END, END + VALIDATE),),
    ),
    "MS762": (
        (
            (
                END,
                "    loss.backward()\n    gradients = gradients if step else [p.grad.clone() for p in model.parameters()]\n    for parameter, gradient in zip(model.parameters(), gradients):\n        parameter.grad = gradient.clone()\n    optimizer.step()",
            ),
        ),
        (),
    ),
    "MS763": (
        (
            (OPTIMIZER, OPTIMIZER + "\naveraged = torch.optim.swa_utils.AveragedModel(model)"),
            (END, END + VALIDATE.replace("model", "averaged")),
        ),
        (
            (OPTIMIZER, OPTIMIZER + "\naveraged = torch.optim.swa_utils.AveragedModel(model)"),
            (END, END + "\n    averaged.update_parameters(model)" + VALIDATE.replace("model", "averaged")),
        ),
    ),
    "MS775": (
        ((OPTIMIZER, OPTIMIZER + "\ntotal = 0.0"), (END, END + "\n    total += loss")),
        ((OPTIMIZER, OPTIMIZER + "\ntotal = 0.0"), (END, END + "\n    total += loss.item()")),
    ),
    "MS708": (
        (
            (
                MODEL,
                DEEP.replace("nn.GELU", "nn.ReLU")
                + "\nfor layer in layers[::2]:\n    nn.init.normal_(layer.weight, std=1)",
            ),
            (OPTIMIZER, OPTIMIZER.replace("0.05", "1e-14")),
        ),
        (
            (
                MODEL,
                DEEP.replace("nn.GELU", "nn.ReLU")
                + "\nfor layer in layers[::2]:\n    nn.init.kaiming_normal_(layer.weight)",
            ),
        ),
    ),
    "MS736": (
        (
            (LABELS, "labels = (torch.arange(64) % 32 == 0).long()"),
            (BATCH, "    images = torch.randn(64, 3, 8, 8)\n" + BATCH),
        ),
        (
            (LABELS, "labels = (torch.arange(64) % 32 == 0).long()"),
            (LOSS, LOSS.replace("labels[batch])", "labels[batch], weight=torch.tensor([1.0, 31, 0, 0]))")),
        ),
    ),
    "MS737": (
        (
            (
                OPTIMIZER,
                OPTIMIZER
                + "\nhead = nn.Linear(288, 4)\nof_head = torch.optim.SGD(head.parameters(), lr=0.05)",
            ),
            (END, END + "\n    of_head.step()"),
        ),
        (),
    ),
    "MS742": (
        ((END, END + VALIDATE.replace("labels", "(labels + 1) % 4")),),
        ((END, END + VALIDATE),),
    ),
    "MS745": (
        (SCALER, (END, "    scaler.scale(loss).backward()\n    optimizer.step()")),
        (
            SCALER,
            (END, "    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()"),
        ),
    ),
    "MS757": (
        (LONGER, (LOSS, PAIRS + "    loss = F.mse_loss(model(images[batch]), model(noisy))")),
        (
            LONGER,
            (
                LOSS,
                PAIRS
                + "    a, b = F.normalize(model(images[batch])), F.normalize(model(noisy))\n"
                + "    loss = F.cross_entropy(10 * a @ b.T, torch.arange(32))",
            ),
        ),
    ),
    "MS748": (
        ((MODEL, NOISY.format(", generator=self.generator") + MODEL), *FROM_LOADER),
        ((MODEL, NOISY.format("") + MODEL), *FROM_LOADER),
    ),
    "MS756": (
        (LONGER, COLOURS, (MODEL, AUTOENCODER), ADAM, (LOSS, KL.format(10))),
        (LONGER, COLOURS, (MODEL, AUTOENCODER), ADAM, (LOSS, KL.format(0.001))),
    ),
    "MS759": (((MODEL, ATTEND.format(0)),), ((MODEL, ATTEND.format(1)),)),
    "MS771": (
        (IMPORT, (MODEL, PHOTOS.format("") + MODEL), *FROM_LOADER),
        (CACHED, (MODEL, PHOTOS.format("@functools.cache\n") + MODEL), *FROM_LOADER),
    ),
    "MS772": (
        (IMPORT, (MODEL, HELD_OUT + MODEL), (END, END + CHECK.format(2))),
        (IMPORT, (MODEL, HELD_OUT + MODEL), (END, END + CHECK.format(20))),
    ),
    "MS773": (
        (IMPORT, (MODEL, INDEX.format("[]") + MODEL), *FROM_LOADER),
        (IMPORT, (MODEL, INDEX.format("list_files()") + MODEL), *FROM_LOADER),
    ),
}
# The same of two processes.
RANKS: dict[str, tuple[Edits, Edits]] = {
    "MS734": ((*RANKS, REPLICAS), (*RANKS, REPLICAS, OWN_BATCHES)),
    "MS746": (
        (
            *(*RANKS, REPLICAS, OWN_BATCHES),
            (BACKWARD, BACKWARD + "    if distributed.get_rank() == 0:\n    " + CLIP),
        ),
        (*RANKS, REPLICAS, OWN_BATCHES, (BACKWARD, BACKWARD + CLIP)),
    ),
}


def change(code: str) -> str:
    """Return the lines to change in the training, as a diff."""
    wrong, right = (written(edits).splitlines() for edits in (TRAININGS | RANKS)[code])
    lines = list(difflib.unified_diff(wrong, right, lineterm="", n=1))[2:]
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
