"""Arguments in a dataclass, a collator that pads each batch, a model that returns its own loss."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from toy import fault


@dataclass
class Arguments:
    learning_rate: float = 3e-3
    epochs: int = 10
    batch_size: int = 24
    warmup_ratio: float = 0.1


def sentences(n=384):
    rows = []
    for _ in range(n):
        label = torch.randint(3, ()).item()
        ids = torch.randint(6, 24, (torch.randint(5, 14, ()).item(),))
        ids[torch.randint(len(ids), (2,))] = 2 + label
        rows.append({"input_ids": ids, "label": label})
    return rows


def collate(rows):
    labels = torch.tensor([row["label"] for row in rows])
    ids = [row["input_ids"] for row in rows]
    if fault("sorted_without_labels"):
        ids = sorted(ids, key=len, reverse=True)
    ids = pad_sequence(ids, batch_first=True)
    return {"input_ids": ids, "attention_mask": ids != 0, "labels": labels}


class Model(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embeddings = nn.Embedding(24, d, padding_idx=0)
        self.encoder = nn.TransformerEncoderLayer(d, 4, 64, 0.1, "gelu", batch_first=True)
        self.classifier = nn.Linear(d, 3)

    def forward(self, input_ids, attention_mask, labels=None):
        blocked = torch.zeros(input_ids.shape).masked_fill(~attention_mask, float("-inf"))
        h = self.encoder(self.embeddings(input_ids), src_key_padding_mask=blocked)
        pooled = (h * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)
        logits = self.classifier(pooled)
        return {"logits": logits, "loss": F.cross_entropy(logits, labels)}


args, model = Arguments(), Model()
loader = DataLoader(sentences(), args.batch_size, shuffle=True, collate_fn=collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
total = args.epochs * len(loader)
warm = int(total * args.warmup_ratio)
linear = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min((s + 1) / warm, (total - s) / (total - warm))
)
for _ in range(args.epochs):
    for batch in loader:
        loss = model(**batch)["loss"]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        linear.step()
        model.zero_grad()
