"""A learner whose whole step is made of callbacks, with one-cycle rate and momentum, as in fastai."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import clusters, fault


class CancelBatch(Exception):
    pass


class Callback:
    order = 0

    def before_fit(self, learn): ...
    def before_batch(self, learn): ...
    def after_backward(self, learn): ...
    def after_batch(self, learn): ...


class Clear(Callback):
    order = -5 if fault("cleared_after_backward") else 5

    def after_backward(self, learn):
        if self.order < 0:
            learn.opt.zero_grad()

    def after_batch(self, learn):
        learn.opt.zero_grad()


class OneCycle(Callback):
    def before_fit(self, learn):
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            learn.opt, 0.1, total_steps=learn.epochs * len(learn.batches)
        )

    def after_batch(self, learn):
        self.schedule.step()


class Clip(Callback):
    def after_backward(self, learn):
        nn.utils.clip_grad_norm_(learn.model.parameters(), 2.0)


class SkipTiny(Callback):
    def before_batch(self, learn):
        if len(learn.y) < 8:
            raise CancelBatch


class Learner:
    def __init__(self, model, batches, callbacks):
        self.model, self.batches = model, batches
        self.opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
        self.callbacks = sorted(callbacks, key=lambda one: one.order)

    def call(self, event):
        for one in self.callbacks:
            getattr(one, event)(self)

    def fit(self, epochs):
        self.epochs = epochs
        self.call("before_fit")
        for _ in range(epochs):
            for self.x, self.y in self.batches:
                try:
                    self.call("before_batch")
                    self.loss = F.cross_entropy(self.model(self.x), self.y)
                    self.loss.backward()
                    self.call("after_backward")
                    self.opt.step()
                    self.call("after_batch")
                except CancelBatch:
                    pass


x, y = clusters(500)
net = nn.Sequential(nn.Linear(20, 48), nn.BatchNorm1d(48), nn.Mish(), nn.Dropout(0.1), nn.Linear(48, 6))
Learner(net, list(zip(x.split(32), y.split(32), strict=True)), [OneCycle(), Clear(), Clip(), SkipTiny()]).fit(
    12
)
