import sys
import time

import torch
import torch.nn.functional as F

from highlights.config import Config
from highlights.encoder import EventSpotter


class MatchClips:
    def __init__(self, cfg, device, seed):
        self.cfg = cfg
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)
        self.bank = torch.randint(0, 255, (8, 3, cfg.frames, cfg.size, cfg.size),
                                  generator=self.generator, dtype=torch.uint8)

    def batch(self, size):
        index = torch.randint(0, len(self.bank), (size,), generator=self.generator)
        clip = self.bank[index].to(self.device).float().sub_(114.0).div_(58.0)
        event = torch.randint(0, self.cfg.events + 1, (size,), generator=self.generator)
        offset = torch.rand(size, generator=self.generator)
        return clip, event.to(self.device), offset.to(self.device)


def parameter_groups(model, weight_decay):
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": decay, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def spotting_loss(event_logits, offset, event, target_offset):
    foreground = (event > 0).float()
    position = (offset.sigmoid() - target_offset).square() * foreground
    return F.cross_entropy(event_logits, event, label_smoothing=0.1) + position.mean()


@torch.no_grad()
def spot(model, clips, batches, size):
    model.eval()
    tops = []
    for _ in range(batches):
        clip, _, _ = clips.batch(size)
        logits, _ = model(clip)
        tops.append(logits.softmax(-1)[:, 1:].amax(-1).cpu())
    model.train()
    return torch.cat(tops)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(19)
    cfg = Config()
    model = EventSpotter(cfg).to(device)
    optimizer = torch.optim.AdamW(parameter_groups(model, cfg.weight_decay), lr=cfg.lr)
    train, valid = MatchClips(cfg, device, 1), MatchClips(cfg, device, 2)
    size = sum(p.numel() for p in model.parameters()) / 1e6
    print(f"{size:.0f}M parameters, {cfg.tokens} tokens per clip, recompute {cfg.recompute}", flush=True)

    scores = spot(model, valid, batches=2, size=8)
    print(f"before training: {len(scores)} clips scored", flush=True)
    for step in range(cfg.steps):
        started = time.time()
        clip, event, offset = train.batch(cfg.batch_size)
        loss = spotting_loss(*model(clip), event, offset)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f} ({time.time() - started:.2f}s)", flush=True)
    scores = spot(model, valid, batches=2, size=8)
    print(f"after training: {len(scores)} clips scored")


if __name__ == "__main__":
    main()
