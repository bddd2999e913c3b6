import gc
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import OneCycleLR


@dataclass
class StageLog:
    stage: int
    trainable: int
    schedule: OneCycleLR
    losses: list = field(default_factory=list)

    def describe(self):
        peak = max(group["max_lr"] for group in self.schedule.optimizer.param_groups)
        last = self.schedule.get_last_lr()[0]
        return (f"stage {self.stage}: {self.trainable / 1e6:6.1f}M trainable, "
                f"lr {peak:.1e} -> {last:.1e}, loss {self.losses[-1]:.4f}")


class GradualFinetuner:
    """Unfreezes the encoder group by group, with a fresh one-cycle schedule for every stage."""

    def __init__(self, model, data, steps_per_stage, base_lr=4e-4, decay=0.6):
        self.model = model
        self.data = data
        self.steps = steps_per_stage
        self.base_lr = base_lr
        self.decay = decay
        self.logs = []

    def run_stage(self, stage, trainable):
        optimizer = torch.optim.AdamW(trainable, lr=self.base_lr, weight_decay=0.05)
        schedule = OneCycleLR(optimizer, max_lr=self.base_lr * self.decay ** stage, total_steps=self.steps)
        log = StageLog(stage, sum(p.numel() for p in trainable), schedule)
        for spec, target in self.data.batches(self.steps):
            loss = F.binary_cross_entropy_with_logits(self.model(spec), target)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            log.losses.append(loss.item())
        optimizer.zero_grad(set_to_none=True)
        return log

    def run(self, per_group):
        self.model.requires_grad_(False)
        trainable = []
        for stage, group in enumerate(self.model.groups(per_group)):
            for parameter in group:
                parameter.requires_grad_(True)
            trainable.extend(group)
            gc.collect()
            torch.cuda.empty_cache()
            self.logs.append(self.run_stage(stage, trainable))
            print(self.logs[-1].describe(), flush=True)
        return self.logs
