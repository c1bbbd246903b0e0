"""Longer examples of rules: the time of a training, an autoencoder, several processes; see `examples.py`."""

from tools.docs.examples import (
    _BATCH,
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
    time.sleep(20)  # such as reading the names of a million files
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
_ON_DEVICE = (
    (_MODEL, 'device = "cuda" if torch.cuda.is_available() else "cpu"\n' + _MODEL + ".to(device)"),
    (_LOSS, "    loss = F.cross_entropy(model(images[batch].to(device)), labels[batch].to(device))"),
)
_LOG = "{}print(step, loss.item())\n    time.sleep(0.2)  # such as a transform of the next images on the CPU"
_EVERY_50 = "if step % 50 == 0:\n        "
_SLOW_DISK = "time.sleep(0.12 * distributed.get_rank())  # such as a disk that is slower in one machine"
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
TIMED: dict[str, tuple[Edits, Edits]] = {
    "MS756": (
        (_LONGER, _COLOURS, (_MODEL, _AUTOENCODER), _ADAM, (_LOSS, _KL.format(10))),
        (_LONGER, _COLOURS, (_MODEL, _AUTOENCODER), _ADAM, (_LOSS, _KL.format(0.001))),
    ),
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
    "MS774": (
        (_IMPORT, *_ON_DEVICE, (_END, f"{_END}\n    {_LOG.format('')}")),
        (_IMPORT, *_ON_DEVICE, (_END, f"{_END}\n    {_LOG.format(_EVERY_50)}")),
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
    "MS776": (
        (_IMPORT, *_RANKS, _REPLICAS, _OWN_BATCHES, (_BATCH, f"{_BATCH}\n    {_SLOW_DISK}")),
        (_IMPORT, *_RANKS, _REPLICAS, _OWN_BATCHES, ("\nfor step", f"\n{_SLOW_DISK}\nfor step")),
    ),
}
