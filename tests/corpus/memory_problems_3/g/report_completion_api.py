"""Batch completion service for support tickets: greedy decoding with a decoder-only model."""
import dataclasses
import logging
import queue

import torch
import torch.nn as nn
import torch.nn.functional as F

logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
LOGGER = logging.getLogger("completion")


@dataclasses.dataclass
class ModelConfig:
    vocab_size: int = 128256
    hidden_size: int = 640
    num_layers: int = 6
    num_heads: int = 10
    max_positions: int = 4096


@dataclasses.dataclass
class Request:
    uid: int
    prompt: torch.Tensor
    max_new_tokens: int


class DecoderLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d = cfg.hidden_size
        self.heads = cfg.num_heads
        self.input_norm = nn.RMSNorm(d)
        self.post_norm = nn.RMSNorm(d)
        self.qkv_proj = nn.Linear(d, 3 * d, bias=False)
        self.o_proj = nn.Linear(d, d, bias=False)
        self.gate_up = nn.Linear(d, 6 * d, bias=False)
        self.down = nn.Linear(3 * d, d, bias=False)

    def forward(self, x, past):
        b, n, d = x.shape
        qkv = self.qkv_proj(self.input_norm(x)).view(b, n, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        attn = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.o_proj(attn.transpose(1, 2).reshape(b, n, d))
        gate, up = self.gate_up(self.post_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up), (k, v)


class CausalLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.embed_positions = nn.Embedding(cfg.max_positions, cfg.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(cfg) for _ in range(cfg.num_layers))
        self.norm = nn.RMSNorm(cfg.hidden_size)
        self.lm_head = nn.Linear(cfg.hidden_size, cfg.vocab_size, bias=False)

    def forward(self, input_ids, past=None, labels=None):
        offset = 0 if past is None else past[0][0].shape[2]
        positions = torch.arange(offset, offset + input_ids.shape[1], device=input_ids.device)
        hidden = self.embed_tokens(input_ids) + self.embed_positions(positions)
        present = []
        for i, layer in enumerate(self.layers):
            hidden, kv = layer(hidden, None if past is None else past[i])
            present.append(kv)
        logits = self.lm_head(self.norm(hidden))
        logits = logits.float()
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return loss, logits, present


class Engine:
    def __init__(self, cfg, device="cuda", dtype=torch.bfloat16):
        self.device = device
        self.model = CausalLM(cfg).to(device, dtype).eval()

    @torch.inference_mode()
    def generate(self, request):
        ids = request.prompt[None].to(self.device)
        past, produced = None, []
        for _ in range(request.max_new_tokens):
            _, logits, past = self.model(ids, past)
            ids = logits[:, -1:].argmax(-1).clamp(0, 128255)
            produced.append(ids)
        return torch.cat(produced, dim=1)[0].tolist()


def enqueue_tickets(n):
    gen = torch.Generator().manual_seed(5)
    requests = queue.Queue()
    for uid in range(n):
        length = int(torch.randint(300, 2600, (1,), generator=gen))
        prompt = torch.randint(0, 128256, (length,), generator=gen)
        requests.put(Request(uid, prompt, max_new_tokens=12))
    return requests


def main():
    torch.manual_seed(0)
    engine = Engine(ModelConfig())
    requests = enqueue_tickets(64)
    answered = 0
    while not requests.empty():
        request = requests.get()
        tokens = engine.generate(request)
        answered += 1
        if answered % 16 == 0:
            LOGGER.info("ticket %d: prompt %d tokens, answer %d tokens", request.uid, len(request.prompt), len(tokens))
    LOGGER.info("%d tickets answered", answered)


if __name__ == "__main__":
    main()
