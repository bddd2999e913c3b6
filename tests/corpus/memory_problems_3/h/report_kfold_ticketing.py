"""K-fold cross-validation of a support-ticket router.

Every fold trains a fresh encoder from scratch and reports the accuracy on the
held-out part.

    python report_kfold_ticketing.py cuda
"""
import random
import sys
from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR

VOCAB = 16000
NUM_QUEUES = 24
MAX_LEN = 48


@dataclass
class InputFeatures:
    input_ids: list
    attention_mask: list
    segment_ids: list
    queue: int


class WarmupLinearSchedule(LambdaLR):
    """Linear warm-up for `warmup_steps`, then linear decay to zero."""

    def __init__(self, optimizer, warmup_steps, t_total, last_epoch=-1):
        self.warmup_steps = warmup_steps
        self.t_total = t_total
        super().__init__(optimizer, self.lr_lambda, last_epoch=last_epoch)

    def lr_lambda(self, step):
        if step < self.warmup_steps:
            return float(step) / float(max(1, self.warmup_steps))
        return max(0.0, float(self.t_total - step) / float(max(1.0, self.t_total - self.warmup_steps)))


class TicketEncoder(nn.Module):
    def __init__(self, dim=384, depth=3, heads=6):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.seg = nn.Embedding(2, dim)
        self.pos = nn.Parameter(torch.zeros(1, MAX_LEN, dim))
        layer = nn.TransformerEncoderLayer(
            dim, heads, dim_feedforward=4 * dim, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, NUM_QUEUES)

    def forward(self, ids, mask, segments):
        hidden = self.tok(ids) + self.pos[:, : ids.shape[1]] + self.seg(segments)
        hidden = self.norm(self.encoder(hidden, src_key_padding_mask=mask == 0))
        return self.head(hidden.mean(dim=1))


def load_tickets(n=2000, seed=11):
    """(subject words, body words, queue) of every ticket."""
    rng = random.Random(seed)
    tickets = []
    for _ in range(n):
        subject = [f"w{rng.randrange(40000)}" for _ in range(rng.randint(3, 8))]
        body = [f"w{rng.randrange(40000)}" for _ in range(rng.randint(10, 30))]
        tickets.append((subject, body, rng.randrange(NUM_QUEUES)))
    return tickets


def convert_to_features(tickets):
    features = []
    for subject, body, queue in tickets:
        ids = [1] + [3 + int(w[1:]) % (VOCAB - 3) for w in subject]
        segments = [0] * len(ids)
        ids += [2] + [3 + int(w[1:]) % (VOCAB - 3) for w in body]
        segments += [1] * (len(ids) - len(segments))
        padding = MAX_LEN - len(ids)
        features.append(InputFeatures(
            ids + [0] * padding, [1] * len(ids) + [0] * padding, segments + [0] * padding, queue
        ))
    return features


def stratified_folds(tickets, k, seed=3):
    by_queue = defaultdict(list)
    for index, ticket in enumerate(tickets):
        by_queue[ticket[2]].append(index)
    rng = random.Random(seed)
    folds = [[] for _ in range(k)]
    cursor = 0
    for members in by_queue.values():
        rng.shuffle(members)
        for index in members:
            folds[cursor % k].append(index)
            cursor += 1
    return folds


def batches(features, batch_size, device, shuffle):
    order = torch.randperm(len(features)).tolist() if shuffle else range(len(features))
    for start in range(0, len(features), batch_size):
        rows = [features[i] for i in order[start : start + batch_size]]
        columns = zip(*((r.input_ids, r.attention_mask, r.segment_ids, r.queue) for r in rows))
        yield tuple(torch.tensor(column).to(device) for column in columns)


@torch.no_grad()
def evaluate(model, features, device):
    model.eval()
    hits = torch.zeros((), device=device)
    for ids, mask, segments, queue in batches(features, 256, device, shuffle=False):
        hits += (model(ids, mask, segments).argmax(dim=-1) == queue).sum()
    return hits.item() / len(features)


def run_fold(train_tickets, test_tickets, device, batch_size=256):
    model = TicketEncoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    steps = (len(train_tickets) + batch_size - 1) // batch_size
    scheduler = WarmupLinearSchedule(optimizer, warmup_steps=2, t_total=steps)
    train_features = convert_to_features(train_tickets)
    test_features = convert_to_features(test_tickets)

    model.train()
    for ids, mask, segments, queue in batches(train_features, batch_size, device, shuffle=True):
        loss = F.cross_entropy(model(ids, mask, segments), queue, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()

    return loss.item(), evaluate(model, test_features, device)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    tickets = load_tickets()
    folds = stratified_folds(tickets, k=8)

    scores = []
    for number, held_out in enumerate(folds):
        train = [tickets[i] for j, fold in enumerate(folds) if j != number for i in fold]
        loss, accuracy = run_fold(train, [tickets[i] for i in held_out], device)
        scores.append(accuracy)
        print(f"fold {number + 1:2d}/{len(folds)}  loss {loss:.3f}  accuracy {accuracy:.3f}")
    print(f"mean accuracy {sum(scores) / len(scores):.3f}")


if __name__ == "__main__":
    main()
