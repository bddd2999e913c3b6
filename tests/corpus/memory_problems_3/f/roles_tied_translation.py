"""Sequence to sequence translation; both embeddings and the output layer share one matrix."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from membook import PeakWatch, gradients, optimizer_tensors, report, storage_bytes

VOCAB = 12_000
DIM = 256
PAD = 0


def sinusoids(length, dim):
    pos = torch.arange(length).unsqueeze(1)
    freq = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    table = torch.zeros(length, dim)
    table[:, 0::2], table[:, 1::2] = torch.sin(pos * freq), torch.cos(pos * freq)
    return table


class Translator(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.source = nn.Embedding(VOCAB, DIM, padding_idx=PAD)
        self.target = nn.Embedding(VOCAB, DIM, padding_idx=PAD)
        self.register_buffer("positions", sinusoids(256, DIM), persistent=False)
        self.core = nn.Transformer(DIM, 4, layers, layers, 4 * DIM, dropout=0.1, batch_first=True)
        self.generator = nn.Linear(DIM, VOCAB, bias=False)
        self.target.weight = self.source.weight
        self.generator.weight = self.source.weight

    def embed(self, table, ids):
        return table(ids) * math.sqrt(DIM) + self.positions[:ids.shape[1]]

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1], device=tgt.device)
        hidden = self.core(self.embed(self.source, src), self.embed(self.target, tgt), tgt_mask=mask)
        return self.generator(hidden)


class Pairs:
    def __init__(self, batch, seed):
        self.batch = batch
        self.g = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            ns, nt = torch.randint(24, 40, (2,), generator=self.g).tolist()
            yield (torch.randint(1, VOCAB, (self.batch, ns), generator=self.g),
                   torch.randint(1, VOCAB, (self.batch, nt), generator=self.g))


def noam(step, warmup=400):
    return DIM ** -0.5 * min((step + 1) ** -0.5, (step + 1) * warmup ** -1.5)


def loss_of(model, src, tgt):
    logits = model(src, tgt[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1)


def main():
    torch.manual_seed(11)
    model = Translator().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, noam)
    watch, sizes = PeakWatch(), None
    for step, (src, tgt) in zip(range(1, 21), Pairs(batch=24, seed=2)):
        src, tgt = src.cuda(), tgt.cuda()
        loss = loss_of(model, src, tgt)
        watch.check(step, "forward")
        loss.backward()
        watch.check(step, "backward")
        if step == 15:
            sizes = {
                "parameters": storage_bytes(model.parameters()),
                "buffers": storage_bytes(model.buffers()),
                "gradients": storage_bytes(gradients(model)),
                "optimizer state": storage_bytes(optimizer_tensors(optimizer)),
                "activations": 0,
                "inputs": storage_bytes([src, tgt]),
            }
        optimizer.step()
        watch.check(step, "optimizer step")
        optimizer.zero_grad()
        scheduler.step()
    report(watch, sizes)


if __name__ == "__main__":
    main()
