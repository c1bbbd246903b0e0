"""Longer examples of rules: loops, images, time, an autoencoder, several processes; see `examples.py`."""

from tools.docs.examples import (
    _BATCH,
    _CLEAR,
    _END,
    _FROM_LOADER,
    _LONGER,
    _LOSS,
    _MODEL,
    _OPTIMIZER,
    _STEP,
    Edits,
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
_IMPORT = ("import torch\n", "import time\n\nimport torch\n")
_CACHED = ("import torch\n", "import functools\nimport time\n\nimport torch\n")
_RANKS = (
    ("import torch\nfrom torch import nn", "import torch\nfrom torch import distributed, nn"),
    ("torch.manual_seed(0)", 'distributed.init_process_group("gloo")\ntorch.manual_seed(0)'),
    (_STEP, _STEP + "\n\ndistributed.barrier()\ndistributed.destroy_process_group()"),
)
_BACKWARD, _CLIP = "    loss.backward()\n", "    nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"
_REPLICAS = (_OPTIMIZER, "model = nn.parallel.DistributedDataParallel(model)\n" + _OPTIMIZER)
_OWN_BATCHES = ("for step in range(60):", "torch.manual_seed(distributed.get_rank())\nfor step in range(60):")

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

# By code: the edits of a training that break the rule, then those that do it right.
_LOOP = "\n".join(("for step in range(60):", _BATCH, _CLEAR + _LOSS, _END))
_EPOCHS = """for epoch in range(16):
    for batch in torch.randint(64, (20, 32)):
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
{0}optimizer.step()
{0}optimizer.zero_grad()"""
_SMOOTH = """\
photographs = F.interpolate(torch.randn(64, 3, 3, 3), 8, mode="bilinear").permute(0, 2, 3, 1).contiguous()
images = photographs"""
_GAN = """\
generator = nn.Linear(16, 192)
model = nn.Sequential(nn.Linear(192, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1){})
criterion = nn.{}()"""
_TWO = """\
optimizer = torch.optim.Adam(model.parameters(), lr={})
of_generator = torch.optim.Adam(generator.parameters(), lr=0.0001)"""
_IN_TURN = """\
    generated = generator(torch.randn(32, 16))
    real, fake = torch.ones(32, 1), torch.zeros(32, 1)
    loss = criterion(model(images[batch].flatten(1)), real) + criterion(model(generated.detach()), fake)"""
_OF_GENERATOR = (
    _END
    + """
    of_generator.zero_grad()
    criterion(model(generated), real).backward()
    of_generator.step()"""
)
_TURNS = ((_LOSS, _IN_TURN), (_END, _OF_GENERATOR))
_WIDE = "model = nn.Sequential(nn.Flatten(), nn.Linear(192, 512), nn.ReLU(), nn.Linear(512, 4))"
TIMED: dict[str, tuple[Edits, Edits]] = {
    "MS767": (
        (("images = torch.randn(64, 3, 8, 8)", _SMOOTH + ".view(64, 3, 8, 8)"),),
        (("images = torch.randn(64, 3, 8, 8)", _SMOOTH + ".permute(0, 3, 1, 2)"),),
    ),
    "MS768": (
        (
            (_MODEL, _WIDE),
            (_OPTIMIZER, "model[1].requires_grad_(False)\n" + _OPTIMIZER.replace("0.05", "0.00001")),
        ),
        ((_MODEL, _WIDE),),
    ),
    "MS778": (
        (
            _LONGER,
            (_MODEL, _GAN.format(", nn.Sigmoid()", "BCELoss")),
            (_OPTIMIZER, _TWO.format(0.01)),
            *_TURNS,
        ),
        (_LONGER, (_MODEL, _GAN.format("", "BCEWithLogitsLoss")), (_OPTIMIZER, _TWO.format(0.0002)), *_TURNS),
    ),
    "MS769": (((_LOOP, _EPOCHS.format("    ")),), ((_LOOP, _EPOCHS.format("        ")),)),
    "MS756": (
        (_LONGER, _COLOURS, (_MODEL, _AUTOENCODER), _ADAM, (_LOSS, _KL.format(10))),
        (_LONGER, _COLOURS, (_MODEL, _AUTOENCODER), _ADAM, (_LOSS, _KL.format(0.001))),
    ),
    "MS771": (
        (_IMPORT, (_MODEL, _PHOTOS.format("") + _MODEL), *_FROM_LOADER),
        (_CACHED, (_MODEL, _PHOTOS.format("@functools.cache\n") + _MODEL), *_FROM_LOADER),
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

_SQUASH = """
class Squash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * ({})


class Squashed(nn.Module):
    def forward(self, x):
        return Squash.apply(x)


model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4), Squashed())
"""
# Reported with `--try-fixes`
TRIED: dict[str, tuple[Edits, Edits]] = {
    "MS790": (((_LOSS, _LOSS.replace("labels[batch])", "labels[batch], label_smoothing=1.0)")),), ()),
    "MS791": (
        ((_MODEL, "\n" + _SQUASH.format("x.tanh() ** 2 - 1").strip()),),
        ((_MODEL, "\n" + _SQUASH.format("1 - x.tanh() ** 2").strip()),),
    ),
    "MS792": (((_LOSS, _LOSS.replace("labels[batch]", "labels[batch.flip(0)]")),), ()),
    "MS793": (((_LOSS, _LOSS.replace("model(images[batch])", "(model(images[batch]) / 9) ** 9")),), ()),
}
