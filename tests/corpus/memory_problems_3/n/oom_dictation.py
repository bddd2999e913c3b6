import sys

import torch
import torch.nn.functional as F

from dictation.corpus import MELS, VOCAB, DictationSet, build_manifest, collate
from dictation.model import DictationModel
from dictation.sampler import FrameBudgetSampler


def spec_augment(features, generator, bands=2, width=12):
    for _ in range(bands):
        start = int(torch.randint(0, MELS - width, (1,), generator=generator))
        features[:, :, start:start + width] = 0.0
    return features


def warmup_cosine(step, warmup=10, total=60):
    if step < warmup:
        return (step + 1) / warmup
    return max(0.05, 1.0 - (step - warmup) / (total - warmup))


class Recipe:
    def __init__(self, device):
        self.device = device
        self.model = DictationModel(MELS, VOCAB).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=4e-4, weight_decay=0.01)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, warmup_cosine)
        self.generator = torch.Generator().manual_seed(5)

    def ctc(self, logits, lengths, labels, label_lengths):
        log_probs = F.log_softmax(logits.float(), dim=-1).transpose(0, 1)
        return F.ctc_loss(log_probs, labels, lengths, label_lengths, zero_infinity=True)

    def train_step(self, batch):
        features, lengths, labels, label_lengths = batch
        features = spec_augment(features.to(self.device), self.generator)
        labels = labels.to(self.device)
        logits, out_lengths = self.model(features, lengths)
        loss = self.ctc(logits, out_lengths, labels, label_lengths)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        self.scheduler.step()
        return loss.detach()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    manifest = build_manifest(1200, seed=21)
    hours = sum(u.frames for u in manifest) / 360000
    sampler = FrameBudgetSampler(manifest, max_frames=20000, seed=6)
    loader = torch.utils.data.DataLoader(DictationSet(manifest), batch_sampler=sampler, collate_fn=collate)
    print(f"{len(manifest)} utterances, {hours:.1f} h, {len(sampler)} batches", flush=True)

    recipe = Recipe(device)
    for step, batch in enumerate(loader):
        loss = recipe.train_step(batch)
        if step % 4 == 0:
            print(f"step {step:3d} loss {loss.item():.3f} lr {recipe.scheduler.get_last_lr()[0]:.2e}", flush=True)
    print("epoch done")


if __name__ == "__main__":
    main()
