"""A HuBERT-like encoder of speech frames."""
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class EncoderOutput:
    last_hidden_state: torch.Tensor
    hidden_states: tuple = None


class FeedForwardMixer(nn.Module):
    def __init__(self, width, inner, kernel=15):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.mix = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=16)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x):
        x = x + self.mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.down(torch.relu_(self.up(self.norm2(x))))


class SpeechEncoder(nn.Module):
    def __init__(self, mels=80, width=384, inner=768, depth=24):
        super().__init__()
        self.front = nn.Linear(mels, width)
        self.layers = nn.ModuleList(FeedForwardMixer(width, inner) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, frames, output_hidden_states=False):
        x = self.front(frames)
        states = [x]
        for layer in self.layers:
            x = layer(x)
            if output_hidden_states:
                states.append(x)
        return EncoderOutput(
            last_hidden_state=self.norm(x),
            hidden_states=tuple(states) if output_hidden_states else None)
