"""A chat endpoint: an asyncio front, one decoder on the GPU, conversations continue from their keys and values."""
import asyncio
import random
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Conversation:
    user: str
    turns: int = 0
    past: list = field(default_factory=list)
    closed: bool = False


class CachedAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, past):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        x = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(x.transpose(1, 2).reshape(batch, length, width)), (k.contiguous(), v.contiguous())


class Decoder(nn.Module):
    def __init__(self, vocabulary=16000, width=1024, heads=16, layers=12):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.attention = nn.ModuleList(CachedAttention(width, heads) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens, past):
        x = self.embed(tokens)
        present = []
        for number, (attention, mlp) in enumerate(zip(self.attention, self.mlp)):
            attended, keys_values = attention(x, past[number] if past else None)
            present.append(keys_values)
            x = x + attended
            x = x + mlp(x)
        return self.norm(x[:, -1]) @ self.embed.weight.t(), present


class ChatService:
    def __init__(self, device):
        self.device = device
        with device:
            self.decoder = Decoder().half().eval().requires_grad_(False)
        self.conversations = {}
        self.lock = asyncio.Lock()

    def open(self, identifier, user):
        self.conversations[identifier] = Conversation(user)
        return identifier

    @torch.inference_mode()
    def _reply(self, conversation, prompt, new_tokens):
        logits, past = self.decoder(prompt.to(self.device), conversation.past)
        answer = []
        for _ in range(new_tokens):
            token = logits.argmax(dim=-1, keepdim=True)
            answer.append(int(token))
            logits, past = self.decoder(token, past)
        conversation.past = past
        conversation.turns += 1
        return answer

    async def say(self, identifier, prompt, new_tokens=4):
        conversation = self.conversations[identifier]
        async with self.lock:
            answer = self._reply(conversation, prompt, new_tokens)
        await asyncio.sleep(0)
        return answer

    def close(self, identifier):
        self.conversations[identifier].closed = True

    def statistics(self):
        active = sum(not conversation.closed for conversation in self.conversations.values())
        return {"active": active, "allocated_mib": torch.cuda.memory_allocated() // 2**20}


async def client(service, number, rng):
    identifier = service.open(f"c{number:05d}", user=f"user{rng.randrange(50)}")
    for _ in range(rng.randint(2, 4)):
        prompt = torch.randint(0, 16000, (1, rng.randint(100, 500)))
        await service.say(identifier, prompt)
    service.close(identifier)


async def main():
    rng = random.Random(4)
    service = ChatService(torch.device("cuda"))
    number = 0
    for wave in range(120):
        await asyncio.gather(*(client(service, number + offset, rng) for offset in range(3)))
        number += 3
        if wave % 10 == 0:
            print(f"wave {wave}: {service.statistics()}")


if __name__ == "__main__":
    asyncio.run(main())
