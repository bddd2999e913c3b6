"""Trains a small text classifier and evaluates it after each epoch over the whole validation set.

True cause: the evaluation runs with gradients enabled (model.eval() does not turn them off), so that each logits tensor
kept for the metrics keeps the graph and the activations of its batch.
The line: `logits = model(tokens)` in `evaluate`, which is not under torch.no_grad().
Cure: decorate `evaluate` with @torch.no_grad() (or inference_mode); then the kept logits are some kilobytes each.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, vocab=8000, dim=256, layers=4, classes=5):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            for _ in range(layers)
        )
        self.out = nn.Linear(dim, classes)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x.mean(dim=1))


def train_epoch(model, loader, optimizer, device):
    model.train()
    for tokens, labels in loader:
        tokens, labels = tokens.to(device), labels.to(device)
        loss = nn.functional.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def evaluate(model, loader, device):
    model.eval()
    all_logits, all_labels = [], []
    for tokens, labels in loader:
        tokens = tokens.to(device)
        logits = model(tokens)  # CAUSE
        all_logits.append(logits)
        all_labels.append(labels.to(device))
    logits = torch.cat(all_logits)
    labels = torch.cat(all_labels)
    accuracy = (logits.argmax(-1) == labels).float().mean().item()
    loss = nn.functional.cross_entropy(logits, labels).item()
    return loss, accuracy


def make_loader(samples, batch_size, shuffle):
    tokens = torch.randint(0, 8000, (samples, 128))
    labels = torch.randint(0, 5, (samples,))
    return DataLoader(TensorDataset(tokens, labels), batch_size=batch_size, shuffle=shuffle)


def main():
    torch.manual_seed(2)
    device = "cuda"
    train_loader = make_loader(1024, 32, True)
    val_loader = make_loader(2048, 32, False)
    model = Classifier().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    for epoch in range(3):
        train_loss = train_epoch(model, train_loader, optimizer, device)
        val_loss, val_acc = evaluate(model, val_loader, device)
        print(f"[{epoch}] train {train_loss:.3f} val {val_loss:.3f} acc {val_acc:.2%}")


if __name__ == "__main__":
    main()
