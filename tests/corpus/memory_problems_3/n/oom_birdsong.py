import sys

import torch

from birdsong.encoder import SpectrogramEncoder
from birdsong.finetune import GradualFinetuner

SPECIES = 264


class SoundscapeClips:
    """Five second clips as log-mel spectrograms, with multi-label targets."""

    def __init__(self, device, batch_size, seed):
        self.device = device
        self.batch_size = batch_size
        self.generator = torch.Generator().manual_seed(seed)

    def mixup(self, spec, target):
        lam = float(torch.rand((), generator=self.generator)) * 0.4
        order = torch.randperm(spec.shape[0], generator=self.generator)
        return (1 - lam) * spec + lam * spec[order], torch.maximum(target, target[order])

    def batches(self, count):
        for _ in range(count):
            spec = torch.randn(self.batch_size, 1, 128, 256, generator=self.generator)
            target = (torch.rand(self.batch_size, SPECIES, generator=self.generator) < 0.01).float()
            spec, target = self.mixup(spec, target)
            yield spec.to(self.device), target.to(self.device)


@torch.no_grad()
def validate(model, clips, batches):
    model.eval()
    seen = 0
    best = torch.zeros(SPECIES)
    for spec, _ in clips.batches(batches):
        best = torch.maximum(best, model(spec).sigmoid().amax(0).cpu())
        seen += spec.shape[0]
    model.train()
    return seen, best


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(13)
    with torch.device(device):
        model = SpectrogramEncoder(SPECIES)
    print(f"encoder with {sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters", flush=True)
    train = SoundscapeClips(device, batch_size=8, seed=1)
    valid = SoundscapeClips(device, batch_size=16, seed=2)

    finetuner = GradualFinetuner(model, train, steps_per_stage=4)
    logs = finetuner.run(per_group=4)

    seen, best = validate(model, valid, batches=3)
    print(f"validated on {seen} clips")
    for log in logs:
        print(log.describe())


if __name__ == "__main__":
    main()
