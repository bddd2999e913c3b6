"""Trains a click model; every epoch ends with calibration over the scores of the whole evaluation set."""
import torch
from torch import nn

FIELDS, ROWS, DIM = 24, 4000, 32


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.Embedding(FIELDS * ROWS, DIM)
        self.register_buffer("offsets", torch.arange(FIELDS) * ROWS)
        self.cross = nn.ModuleList(nn.Linear(FIELDS * DIM, FIELDS * DIM) for _ in range(3))
        self.score = nn.Linear(FIELDS * DIM, 1)

    def forward(self, ids):
        first = x = self.tables(ids + self.offsets).flatten(1)
        for layer in self.cross:
            x = first * layer(x) + x
        return self.score(x).squeeze(1), x


def impressions(batches, size):
    for _ in range(batches):
        yield torch.randint(0, ROWS, (size, FIELDS)), (torch.rand(size) < 0.03).float()


def train_one_epoch(model, optimizer):
    model.train()
    for ids, clicks in impressions(40, 2048):
        logits, _ = model(ids.cuda())
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks.cuda())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return loss.item()


def calibration(scores, clicks, bins=20):
    order = scores.argsort().clamp(0, len(scores) - 1)
    scores, clicks = scores[order], clicks[order]
    gaps = [(part.mean() - truth.mean()).abs() for part, truth in zip(scores.chunk(bins), clicks.chunk(bins))]
    return torch.stack(gaps).mean().item()


def spread(representations):
    centered = representations - representations.mean(dim=0)
    return centered.pow(2).mean().sqrt().item()


@torch.no_grad()
def evaluate(model, batches):
    model.eval()
    scores, clicks, representations = [], [], []
    for ids, labels in impressions(batches, 4096):
        logits, hidden = model(ids.cuda())
        scores.append(logits.sigmoid())
        clicks.append(labels.cuda())
        representations.append(hidden.half())
    peak_inputs = torch.cuda.memory_allocated() >> 20
    result = {
        "calibration": calibration(torch.cat(scores), torch.cat(clicks)),
        "spread": spread(torch.cat(representations)),
    }
    return result, peak_inputs


def main():
    torch.manual_seed(0)
    model = ClickModel().cuda()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    for epoch in range(6):
        loss = train_one_epoch(model, optimizer)
        before = torch.cuda.memory_allocated() >> 20
        result, held = evaluate(model, batches=60)
        print(f"epoch {epoch}: loss {loss:.4f}, {result}; {before} MiB before, {held} MiB with outputs, "
              f"{torch.cuda.memory_allocated() >> 20} MiB after")


if __name__ == "__main__":
    main()
