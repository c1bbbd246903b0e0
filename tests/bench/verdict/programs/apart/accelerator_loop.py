"""A wrapper object that prepares model, optimizer and loader, accumulates and clips, as accelerate does."""

import contextlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from toy import corpus, fault


class PreparedOptimizer:
    def __init__(self, optimizer, accelerator):
        self.optimizer, self.accelerator = optimizer, accelerator

    def step(self):
        if self.accelerator.sync_gradients:
            self.optimizer.step()

    def zero_grad(self):
        if self.accelerator.sync_gradients:
            self.optimizer.zero_grad()


class Accelerator:
    def __init__(self, every):
        self.every, self.calls, self.sync_gradients = every, 0, True

    def prepare(self, model, optimizer, loader):
        return model, PreparedOptimizer(optimizer, self), loader

    @contextlib.contextmanager
    def accumulate(self, model):
        self.calls += 1
        self.sync_gradients = self.calls % self.every == 0
        if fault("never_in_step"):
            self.sync_gradients = self.calls % self.every == self.every
        yield

    def backward(self, loss):
        (loss / self.every).backward()

    def clip_grad_norm_(self, parameters, value):
        if self.sync_gradients:
            nn.utils.clip_grad_norm_(parameters, value)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(14, 24)
        self.gru = nn.GRU(24, 48, batch_first=True)
        self.out = nn.Linear(48, 14)

    def forward(self, input_ids, labels=None):
        logits = self.out(self.gru(self.embed(input_ids))[0])
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


text = corpus().unfold(0, 13, 8)
loader = DataLoader(TensorDataset(text[:, :-1], text[:, 1:]), 8, shuffle=True)
model = Tagger()
accelerator = Accelerator(2)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 4e-3), loader)
for _ in range(6):
    for ids, following in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=ids, labels=following)["loss"]
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
