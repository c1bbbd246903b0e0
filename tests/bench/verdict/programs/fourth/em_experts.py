"""A mixture of regressions: responsibilities are computed, then the experts take gradient steps under them."""

import torch
from small import explained, fault
from torch import nn

N, K = 512, 3
x = torch.rand(N, 1) * 4 - 2
truth = torch.tensor([[2.0, 1.0], [-2.0, 0.0], [0.3, -3.0]])
which = torch.randint(K, (N,))
y = truth[which, :1] * x + truth[which, 1:] + 0.15 * torch.randn(N, 1)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope, self.shift = nn.Parameter(torch.randn(K)), nn.Parameter(torch.randn(K))
        self.log_sigma = nn.Parameter(torch.zeros(K))
        self.prior = nn.Parameter(torch.zeros(K))

    def log_likelihood(self, x, y):
        miss = (y - x * self.slope - self.shift) / self.log_sigma.exp()
        return -0.5 * miss.square() - self.log_sigma + self.prior.log_softmax(0)


net = Experts()
optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
for cycle in range(60):
    with torch.no_grad():
        responsibility = net.log_likelihood(x, y).softmax(0 if fault("over_the_samples") else 1)
    for _ in range(6):
        loss = -(responsibility * net.log_likelihood(x, y)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    with torch.no_grad():
        best = net.log_likelihood(x, y).argmax(1)
        return explained(x[:, 0] * net.slope[best] + net.shift[best], y[:, 0])
