"""An estimator with fit and partial_fit, as scikit-learn's users write it, on two classes."""

import torch
from torch import nn
from torch.utils.data import BatchSampler, RandomSampler
from toy import fault


class TorchClassifier:
    def __init__(self, hidden=64, lr=0.02, epochs=16, batch=32):
        self.hidden, self.lr, self.epochs, self.batch = hidden, lr, epochs, batch

    def fit(self, X, y):
        out = [nn.Sigmoid()] if fault("sigmoid_before_logits_loss") else []
        self.module_ = nn.Sequential(
            nn.Linear(X.shape[1], self.hidden), nn.Tanh(), nn.Linear(self.hidden, 1), *out
        )
        self.optimizer_ = torch.optim.Adadelta(self.module_.parameters(), lr=1.0)
        self.criterion_ = nn.BCEWithLogitsLoss()
        for _ in range(self.epochs):
            for index in BatchSampler(RandomSampler(X), self.batch, drop_last=False):
                self.partial_fit(X[index], y[index])
        return self

    def partial_fit(self, X, y):
        self.module_.train()

        def closure():
            self.optimizer_.zero_grad()
            loss = self.criterion_(self.module_(X).squeeze(-1), y)
            loss.backward()
            return loss

        self.optimizer_.step(closure)

    def score(self, X, y):
        self.module_.eval()
        with torch.no_grad():
            return ((self.module_(X).squeeze(-1) > 0) == y.bool()).float().mean().item()


X = torch.randn(512, 8)
y = (X[:, 0] + X[:, 1] * X[:, 2] > 0.3).float()
print(TorchClassifier().fit(X[:384], y[:384]).score(X[384:], y[384:]))
