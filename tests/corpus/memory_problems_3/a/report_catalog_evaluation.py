"""Fine-tunes a text encoder to assign product titles to the nodes of a shop's catalogue, then evaluates it."""
import torch
from torch import nn

from catalog_trainer import PredictionOutput, Trainer, TrainingArguments

CATEGORIES = 9997
VOCABULARY = 30522


class TitleDataset:
    def __init__(self, size, max_length=32, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, VOCABULARY, (size, max_length), generator=generator)
        self.lengths = torch.randint(6, max_length + 1, (size,), generator=generator)
        self.labels = torch.randint(0, CATEGORIES, (size,), generator=generator)

    def __len__(self):
        return len(self.labels)

    def collate(self, indices):
        lengths = self.lengths[indices]
        width = int(lengths.max())
        mask = torch.arange(width)[None, :] < lengths[:, None]
        return {
            "input_ids": self.tokens[indices, :width] * mask,
            "attention_mask": mask,
            "labels": self.labels[indices],
        }


class EncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm_1 = nn.LayerNorm(width)
        self.norm_2 = nn.LayerNorm(width)

    def forward(self, hidden, padding):
        attended, _ = self.attention(hidden, hidden, hidden, key_padding_mask=padding, need_weights=False)
        hidden = self.norm_1(hidden + attended)
        return self.norm_2(hidden + self.mlp(hidden))


class TitleClassifier(nn.Module):
    def __init__(self, width=384, layers=4, heads=6):
        super().__init__()
        self.embeddings = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(width, CATEGORIES)

    def forward(self, input_ids, attention_mask, labels):
        hidden = self.embeddings(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, ~attention_mask)
        logits = self.classifier(self.dropout(hidden[:, 0]))
        return nn.functional.cross_entropy(logits, labels), logits


def top_accuracy(output: PredictionOutput):
    best = output.predictions.topk(5, dim=-1).indices.cpu()
    hits = best == output.label_ids[:, None]
    return {"top1": hits[:, 0].float().mean().item(), "top5": hits.any(dim=1).float().mean().item()}


def main():
    torch.manual_seed(0)
    trainer = Trainer(
        TitleClassifier(),
        TrainingArguments(),
        train_dataset=TitleDataset(20000),
        eval_dataset=TitleDataset(72000, seed=1),
        compute_metrics=top_accuracy,
    )
    trainer.train()
    print(f"after training {torch.cuda.memory_allocated() / 2**20:.0f} MiB are allocated")
    for name, value in trainer.evaluate().items():
        print(f"{name}: {value:.4f}")


if __name__ == "__main__":
    main()
