"""Text classification with an embedding bag, offsets and plain SGD at a high rate, as in torchtext's tutorial."""

import torch
from torch import nn
from toy import fault


class TextClassifier(nn.Module):
    def __init__(self, vocabulary, width, classes):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocabulary, width, sparse=False)
        self.fc = nn.Linear(width, classes)
        self.embedding.weight.data.uniform_(-0.5, 0.5)
        self.fc.weight.data.uniform_(-0.5, 0.5)
        self.fc.bias.data.zero_()

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))


def rows(n=640):
    made = []
    for _ in range(n):
        label = torch.randint(4, ()).item()
        words = torch.randint(30, (torch.randint(4, 9, ()).item(),))
        own = 30 + 5 * label + torch.randint(5, (3,))
        made.append((label, torch.cat([words, own])))
    return made


def collate(batch):
    labels = torch.tensor([label for label, _ in batch])
    lengths = torch.tensor([0] + [len(words) for _, words in batch[:-1]])
    offsets = torch.zeros_like(lengths) if fault("offsets_of_zero") else lengths.cumsum(0)
    return labels, torch.cat([words for _, words in batch]), offsets


loader = torch.utils.data.DataLoader(rows(), 32, shuffle=True, collate_fn=collate)
model = TextClassifier(50, 24, 4)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.3)
for epoch in range(8):
    model.train()
    for label, text, offsets in loader:
        optimizer.zero_grad()
        loss = criterion(model(text, offsets), label)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    scheduler.step()
