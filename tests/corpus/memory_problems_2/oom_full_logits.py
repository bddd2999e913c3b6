"""Scores the next token for batches of prompts with a small language model that has a large vocabulary.

Report: https://github.com/NVIDIA-NeMo/Automodel/issues/3907 ("Full [B, S, V] logits materialized"), the same with one
        prompt's logprobs in https://github.com/vllm-project/vllm/issues/5907
Cause:  the head is applied to all positions and the result converted to float32, though only the last one is used:
        batch x length x 96000 values; the first batch of long prompts does not fit.
Line:   logits = self.lm_head(hidden).float()
Cure:   take the last position first: logits = self.lm_head(hidden[:, -1:]).float().
"""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    vocabulary: int = 96000
    width: int = 768
    heads: int = 12
    layers: int = 4
    batch_size: int = 12


class DecoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 8 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(nn.functional.silu(gate) * up)


class LanguageModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(DecoderLayer(config.width, config.heads) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        hidden = self.norm(hidden)
        logits = self.lm_head(hidden).float()  # CAUSE
        return logits


class NextTokenScorer:
    def __init__(self, model, device, choices=4):
        self.model = model
        self.device = device
        self.choices = choices

    @torch.inference_mode()
    def score(self, prompts):
        logits = self.model(prompts.to(self.device))
        return logits[:, -1].log_softmax(dim=-1)[:, : self.choices].cpu()


def prompt_batches(config, seed=0):
    """Prompts grouped by length, as the harness sorts them: many short ones, a few long ones at the end."""
    generator = torch.Generator().manual_seed(seed)
    for length, batches in ((64, 30), (128, 25), (256, 20), (512, 10), (1536, 5)):
        for _ in range(batches):
            yield torch.randint(0, config.vocabulary, (config.batch_size, length), generator=generator)


def build(config, device):
    with torch.device(device):
        model = LanguageModel(config)
    return model.to(torch.bfloat16).eval()


def main():
    torch.manual_seed(0)
    config = Config()
    device = torch.device("cuda")
    scorer = NextTokenScorer(build(config, device), device)
    print(f"model loaded: {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    answers = []
    for number, prompts in enumerate(prompt_batches(config)):
        answers.append(scorer.score(prompts).argmax(dim=1))
        if number % 10 == 0:
            peak = torch.cuda.max_memory_allocated() / 2**20
            print(f"batch {number}, length {prompts.shape[1]}, peak {peak:.0f} MiB")
    print("answered", sum(len(answer) for answer in answers), "questions")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
