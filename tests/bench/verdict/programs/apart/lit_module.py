"""A module with training_step and configure_optimizers, and a trainer with hooks, as in Lightning."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from toy import fault, pictures


class Module(nn.Module):
    def setup(self): ...

    def on_train_batch_end(self, loss): ...


class Classifier(Module):
    def __init__(self, classes):
        super().__init__()
        self.classes = classes
        self.body = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Linear(12 * 36, 10)
        self.history = []

    def setup(self):
        self.head = nn.Linear(12 * 36, self.classes)

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch):
        x, y = batch
        return (self(x).argmax(1) == y).float().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)

    def on_train_batch_end(self, loss):
        self.history.append(loss)


class Trainer:
    def __init__(self, max_epochs):
        self.max_epochs = max_epochs

    def fit(self, module, train, val):
        if fault("setup_after_optimizers"):
            optimizer = module.configure_optimizers()
            module.setup()
        else:
            module.setup()
            optimizer = module.configure_optimizers()
        for epoch in range(self.max_epochs):
            module.train()
            for i, batch in enumerate(train):
                loss = module.training_step(batch, i)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                module.on_train_batch_end(loss.item())
            module.eval()
            with torch.no_grad():
                scores = [module.validation_step(batch) for batch in val]
            print(f"epoch {epoch}: val_acc {torch.stack(scores).mean():.3f}")


images, labels = pictures(480)
train = DataLoader(TensorDataset(images[:384], labels[:384]), 32, shuffle=True)
val = DataLoader(TensorDataset(images[384:], labels[384:]), 48)
Trainer(10).fit(Classifier(5), train, val)
