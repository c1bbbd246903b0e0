"""Self-training: confident predictions on weakly changed images label strongly changed ones."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault, pictures

images, labels = pictures(600)
known, unknown = (images[:60], labels[:60]), images[60:]
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, 2, 1),
    nn.BatchNorm2d(16),
    nn.LeakyReLU(0.1),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(576, 5),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True, weight_decay=5e-4)


def weak(x):
    return x + 0.1 * torch.randn_like(x)


def strong(x):
    return (x + 0.4 * torch.randn_like(x)) * (torch.rand(len(x), 1, *x.shape[2:]) > 0.2)


for step in range(150):
    i, j = torch.randint(60, (16,)), torch.randint(len(unknown), (48,))
    out = model(torch.cat([weak(known[0][i]), weak(unknown[j]), strong(unknown[j])]))
    seen, easy, hard = out.split([16, 48, 48])
    sure, guess = F.softmax(easy.detach(), 1).max(1)
    mask = (sure > 0.9).float()
    supervised = F.cross_entropy(seen, known[1][i])
    unsupervised = (F.cross_entropy(hard, guess, reduction="none") * mask).mean()
    if fault("labels_of_the_first"):
        supervised = F.cross_entropy(seen, known[1][:16])
        unsupervised = 0.0
    loss = supervised + unsupervised
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
