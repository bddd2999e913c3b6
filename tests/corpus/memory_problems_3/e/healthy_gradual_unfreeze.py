"""Adapt a pretrained language encoder to support tickets; the layers are unfrozen from the top, one stage at a time."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class TicketModel(nn.Module):
    def __init__(self, vocab=30000, dim=768, layers=8, classes=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 12, 4 * dim, dropout=0.1, batch_first=True) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, classes))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


class GradualUnfreezing:
    """Keeps one optimizer; each newly trainable layer becomes a parameter group with a smaller rate."""

    def __init__(self, model, lr, decay=0.8):
        self.model, self.lr, self.decay = model, lr, decay
        for p in model.parameters():
            p.requires_grad = False
        for p in model.head.parameters():
            p.requires_grad = True
        self.optimizer = torch.optim.AdamW(model.head.parameters(), lr=lr)
        self.pending = list(reversed(model.layers))
        self.stage = 0

    def advance(self):
        if not self.pending:
            return
        layer = self.pending.pop(0)
        self.stage += 1
        for p in layer.parameters():
            p.requires_grad = True
        self.optimizer.add_param_group({"params": list(layer.parameters()), "lr": self.lr * self.decay ** self.stage})


def ticket_batches(batch, length, vocab, seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(0, vocab, (batch, length), generator=g), torch.randint(0, 24, (batch,), generator=g)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-per-stage", type=int, default=12)
    parser.add_argument("--final-steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    with torch.device("cuda"):
        model = TicketModel()
    schedule = GradualUnfreezing(model, lr=2e-4)
    data = ticket_batches(args.batch, 128, 30000, seed=0)
    stages = len(model.layers) + 1
    step = 0
    for stage in range(stages):
        steps = args.steps_per_stage if stage < stages - 1 else args.final_steps
        for _ in range(steps):
            ids, labels = next(data)
            loss = F.cross_entropy(model(ids.cuda()), labels.cuda())
            schedule.optimizer.zero_grad()
            loss.backward()
            schedule.optimizer.step()
            step += 1
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        print(f"stage {stage}: {step} steps, {trainable / 1e6:.1f} M trainable, loss {loss.item():.3f}")
        schedule.advance()


if __name__ == "__main__":
    main()
