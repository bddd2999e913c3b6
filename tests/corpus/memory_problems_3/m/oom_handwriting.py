"""Line recogniser for parish registers (CRNN with CTC)."""
import sys

import torch
from torch.utils.data import DataLoader

from inkreader import LineDataset, LineReader, Trainer, collate


def build_loader(count, batch, seed):
    dataset = LineDataset(count, seed)
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(dataset, batch_size=batch, shuffle=True, collate_fn=collate, generator=generator, drop_last=True)


@torch.no_grad()
def transcribe(model, loader, device, limit=3):
    model.eval()
    lines = []
    for i, (images, _, widths, _) in enumerate(loader):
        if i == limit:
            break
        best = model(images.to(device).float()).argmax(-1).cpu()
        lines += [row[:n] for row, n in zip(best, model.steps(widths).tolist())]
    model.train()
    return lines


def main(device):
    torch.manual_seed(17)
    loader = build_loader(count=256, batch=8, seed=17)
    held_out = build_loader(count=32, batch=8, seed=18)
    trainer = Trainer(LineReader(), device)
    for epoch in range(1):
        mean = trainer.epoch(loader)
        print(f"epoch {epoch} mean loss {mean:.3f}")
    trainer.report()
    print(f"transcribed {len(transcribe(trainer.model, held_out, device))} lines")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
