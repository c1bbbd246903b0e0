"""An engine with events and handlers: validation is a handler of an epoch's end."""

from collections import defaultdict
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from toy import fault, pictures


class Engine:
    def __init__(self, process):
        self.process, self.handlers = process, defaultdict(list)
        self.state = SimpleNamespace(epoch=0, iteration=0, output=None)

    def on(self, event):
        def add(function):
            self.handlers[event].append(function)
            return function

        return add

    def fire(self, event):
        for function in self.handlers[event]:
            function(self)

    def run(self, data, max_epochs=1):
        for self.state.epoch in range(max_epochs):
            self.fire("epoch_started")
            for batch in data:
                self.state.iteration += 1
                self.state.output = self.process(self, batch)
                self.fire("iteration_completed")
            self.fire("epoch_completed")


images, labels = pictures(448)
train = DataLoader(TensorDataset(images[:352], labels[:352]), 32, shuffle=True)
val = DataLoader(TensorDataset(images[352:], labels[352:]), 48)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.3),
    nn.Linear(576, 5),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)


def update(engine, batch):
    if not fault("never_back_to_training"):
        model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss.item()


def infer(engine, batch):
    model.eval()
    with torch.no_grad():
        return (model(batch[0]).argmax(1) == batch[1]).float().mean().item()


trainer, evaluator = Engine(update), Engine(infer)


@trainer.on("epoch_completed")
def validate(engine):
    evaluator.run(val)
    print(engine.state.epoch, evaluator.state.output)


if fault("never_back_to_training"):
    evaluator.run(val)
trainer.run(train, 9)
