"""Preference tuning (DPO) of a small chat model against a frozen reference."""
import copy
from collections import defaultdict
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class DPOConfig:
    beta: float = 0.1
    learning_rate: float = 5e-6
    per_device_batch: int = 2
    max_length: int = 448
    max_steps: int = 60
    logging_steps: int = 20
    vocab_size: int = 65024
    pad_token_id: int = 0


@dataclass
class LMOutput:
    logits: torch.Tensor
    hidden: torch.Tensor = field(repr=False, default=None)


class ChatModel(nn.Module):
    def __init__(self, vocab, dim=384, depth=4, heads=6):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(2048, dim)
        block = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, input_ids):
        t = input_ids.shape[1]
        h = self.tok(input_ids) + self.pos(torch.arange(t, device=input_ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(t, device=input_ids.device)
        h = self.blocks(h, mask=mask, is_causal=True)
        return LMOutput(logits=self.head(h), hidden=h)


def selective_log_softmax(logits, index):
    selected = logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    norm = torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
    return selected - norm


class PreferenceData:
    def __init__(self, cfg, n):
        self.cfg, self.n = cfg, n

    def __iter__(self):
        g = torch.Generator().manual_seed(0)
        for _ in range(self.n):
            shape = (self.cfg.per_device_batch, self.cfg.max_length)
            chosen = torch.randint(1, self.cfg.vocab_size, shape, generator=g)
            rejected = torch.randint(1, self.cfg.vocab_size, shape, generator=g)
            prompt = torch.randint(32, 200, (self.cfg.per_device_batch,), generator=g)
            mask = (torch.arange(self.cfg.max_length)[None] >= prompt[:, None]).long()
            yield {"input_ids": torch.cat([chosen, rejected]), "completion_mask": torch.cat([mask, mask])}


class DPOTrainer:
    def __init__(self, model, cfg, data):
        self.model, self.cfg, self.data = model.cuda(), cfg, data
        self.ref_model = copy.deepcopy(self.model).eval().requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.learning_rate)
        self._metrics = defaultdict(list)

    def compute_loss(self, inputs):
        input_ids = inputs["input_ids"]
        shift_labels = input_ids[:, 1:].contiguous()
        shift_mask = inputs["completion_mask"][:, 1:].contiguous()

        outputs = self.model(input_ids)
        shift_logits = outputs.logits[:, :-1, :].contiguous()
        per_token_logps = selective_log_softmax(shift_logits, shift_labels)
        logps = (per_token_logps * shift_mask).sum(1)

        with torch.no_grad():
            ref_outputs = self.ref_model(input_ids)
            ref_shift_logits = ref_outputs.logits[:, :-1, :].contiguous()
            ref_per_token_logps = selective_log_softmax(ref_shift_logits, shift_labels)
            ref_logps = (ref_per_token_logps * shift_mask).sum(1)

        chosen, rejected = logps.chunk(2)
        ref_chosen, ref_rejected = ref_logps.chunk(2)
        margin = (chosen - ref_chosen) - (rejected - ref_rejected)
        loss = -F.logsigmoid(self.cfg.beta * margin).mean()

        with torch.no_grad():
            self._metrics["rewards/margins"].append(self.cfg.beta * margin.mean().item())
            self._metrics["logps/chosen"].append(chosen.mean().item())
            self._metrics["logits/mean"].append(shift_logits.mean().item())
        loss.backward()
        return loss.detach()

    def train(self):
        self.model.train()
        for step, batch in enumerate(self.data, start=1):
            batch = {k: v.cuda(non_blocking=True) for k, v in batch.items()}
            loss = self.compute_loss(batch)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self._metrics["loss"].append(loss.item())
            if step % self.cfg.logging_steps == 0:
                print({k: round(sum(v) / len(v), 4) for k, v in self._metrics.items()})
                self._metrics.clear()


def main():
    cfg = DPOConfig()
    trainer = DPOTrainer(ChatModel(cfg.vocab_size), cfg, PreferenceData(cfg, cfg.max_steps))
    trainer.train()


if __name__ == "__main__":
    main()
