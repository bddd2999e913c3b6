"""Trains a speech recogniser for short call-centre utterances."""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from listener.model import Listener, Speller
from listener.precision import build

VOCAB = 600


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.listener = Listener()
        self.speller = Speller(VOCAB)

    def forward(self, features, transcript, own_tokens):
        return self.speller(self.listener(features), transcript, own_tokens)


def utterances(batches, generator, batch=6, frames=480, tokens=70):
    for _ in range(batches):
        features = torch.randn(batch, 80, frames, generator=generator)
        transcript = torch.randint(1, VOCAB, (batch, tokens), generator=generator)
        yield features, transcript


class Trainer:
    def __init__(self, device, precision="bf16-mixed", sampling=0.3):
        self.device = device
        self.model = Recogniser().to(device)
        self.precision = build(precision, device.type)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=20)
        self.sampling = sampling
        self.generator = torch.Generator().manual_seed(21)

    def sampled_positions(self, length):
        return (torch.rand(length, generator=self.generator) < self.sampling).tolist()

    def training_step(self, features, transcript):
        features, transcript = features.to(self.device), transcript.to(self.device)
        with self.precision.context():
            own = self.sampled_positions(transcript.shape[1])
            logits = self.model(features, transcript, own)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), transcript[:, 1:].flatten(),
                                   label_smoothing=0.1)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        self.schedule.step()
        return loss.item()

    def fit(self, epochs, batches):
        for epoch in range(epochs):
            total = 0.0
            for features, transcript in utterances(batches, self.generator):
                total += self.training_step(features, transcript)
            print(f"epoch {epoch}  loss {total / batches:.4f}", flush=True)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(17)
    trainer = Trainer(device)
    size = sum(p.numel() for p in trainer.model.parameters())
    print(f"parameters {size / 1e6:.1f} M")
    trainer.fit(epochs=3, batches=4)


if __name__ == "__main__":
    main()
