"""Kind of report: "gradient_checkpointing_enable() has no effect on memory" (Hugging Face transformers and PEFT issues).

True cause: the model comes from from_pretrained in eval mode and the training loop never calls model.train(); blocks are
checkpointed only `if self.gradient_checkpointing and self.training`, so all activations are kept all the same.
The line: `model = CausalLM.from_pretrained("tiny")` without model.train(); the memory is taken at `x = block(x)`.
Cure: call model.train() before the loop (which also turns dropout on).
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, dim, dropout=0.1):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.gate = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        h = self.norm(x)
        return x + self.dropout(self.down(F.silu(self.gate(h)) * self.up(h)))


class CausalLM(nn.Module):
    def __init__(self, vocab=4000, dim=256, layers=12):
        super().__init__()
        self.gradient_checkpointing = False
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    @classmethod
    def from_pretrained(cls, name):
        model = cls()
        # no weights on this machine: the initial ones do
        model.eval()
        return model

    def gradient_checkpointing_enable(self):
        self.gradient_checkpointing = True

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)  # CAUSE
        return self.lm_head(x)


def main():
    torch.manual_seed(26)
    model = CausalLM.from_pretrained("tiny")  # CAUSE
    model.gradient_checkpointing_enable()
    model.to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(60):
        ids = torch.randint(0, 4000, (16, 257)).to("cuda")
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}, peak {torch.cuda.max_memory_allocated() >> 20} MiB", flush=True)


if __name__ == "__main__":
    main()
