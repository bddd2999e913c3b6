"""Listen-attend-spell with scheduled sampling."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Listener(nn.Module):
    def __init__(self, mels=80, width=512):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(mels, width, 5, stride=2, padding=2), nn.GELU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2), nn.GELU(),
        )
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(),
                          nn.Linear(2 * width, width)) for _ in range(3))

    def forward(self, features):
        x = self.front(features).transpose(1, 2)
        for layer in self.layers:
            x = x + layer(x)
        return x


class ResidualCell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gates = nn.Linear(2 * width, 2 * width)
        self.expand = nn.Linear(width, 3 * width)
        self.contract = nn.Linear(3 * width, width)

    def forward(self, x, state):
        update, candidate = self.gates(torch.cat([self.norm(x), state], -1)).chunk(2, -1)
        gate = torch.sigmoid(update)
        state = gate * state + (1 - gate) * torch.tanh(candidate)
        return x + self.contract(F.gelu(self.expand(state))), state


class Speller(nn.Module):
    def __init__(self, vocab, memory_width=512, width=768, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.query = nn.Linear(width, memory_width)
        self.glimpse = nn.Linear(memory_width, width)
        self.cells = nn.ModuleList(ResidualCell(width) for _ in range(depth))
        self.out = nn.Linear(width, vocab)
        self.width = width

    def step(self, token, states, memory):
        x = self.embed(token)
        score = torch.bmm(memory, self.query(x).unsqueeze(-1)).squeeze(-1)
        weight = torch.softmax(score / memory.shape[-1] ** 0.5, -1).to(memory.dtype)
        x = x + self.glimpse(torch.bmm(weight.unsqueeze(1), memory).squeeze(1))
        fresh = []
        for cell, state in zip(self.cells, states):
            x, state = cell(x, state)
            fresh.append(state)
        return self.out(x), fresh

    def forward(self, memory, transcript, own_tokens):
        states = [memory.new_zeros(memory.shape[0], self.width) for _ in self.cells]
        token, logits = transcript[:, 0], []
        for position in range(transcript.shape[1] - 1):
            scores, states = self.step(token, states, memory)
            logits.append(scores)
            token = scores.argmax(-1) if own_tokens[position] else transcript[:, position + 1]
        return torch.stack(logits, 1)
