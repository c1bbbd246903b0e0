"""Message passing with index_add over an edge list, mean aggregation, one graph, a mask of training nodes."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault

n, classes = 240, 4
kinds = torch.randint(classes, (n,))
source, target = torch.randint(n, (2, 4000))
same = (kinds[source] == kinds[target]) | (torch.rand(4000) < 0.1)
source, target = source[same], target[same]
keep = target != 7
source, target = source[keep], target[keep]
features = F.one_hot(kinds, classes).float() * 0.5 + torch.randn(n, classes)
train = torch.rand(n) < 0.5


class Sage(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.own, self.others = nn.Linear(n_in, n_out), nn.Linear(n_in, n_out, bias=False)

    def forward(self, x):
        total = torch.zeros_like(x).index_add(0, target, x[source])
        degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target)))
        degree = degree if fault("isolated_node") else degree.clamp(min=1)
        return self.own(x) + self.others(total / degree[:, None])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Sage(classes, 32), Sage(32, classes)

    def forward(self, x):
        return F.log_softmax(self.two(F.dropout(F.elu(self.one(x)), 0.3, self.training)), dim=-1)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(120):
    model.train()
    optimizer.zero_grad()
    loss = F.nll_loss(model(features)[train], kinds[train])
    loss.backward()
    optimizer.step()
    if epoch % 20 == 0:
        model.eval()
        with torch.no_grad():
            print(epoch, (model(features).argmax(1) == kinds)[~train].float().mean().item())
