"""Architectures for sound event classification."""
import torch
from torch import nn

REGISTRY = {}


def register(cls):
    REGISTRY[cls.__name__] = cls
    return cls


class SpectrogramModel(nn.Module):
    """Normalises a mel spectrogram and pools frame scores to clip scores."""

    def __init__(self, num_classes, pooling="mean"):
        super().__init__()
        self.num_classes = num_classes
        self.register_buffer("mel_mean", torch.zeros(1, 128, 1))
        self.register_buffer("mel_std", torch.ones(1, 128, 1))
        self.pool = {"mean": self.mean_pool, "attention": self.attention_pool, "max": self.max_pool}[pooling]

    def mean_pool(self, frames):
        return frames.mean(dim=1)

    def max_pool(self, frames):
        return frames.amax(dim=1)

    def attention_pool(self, frames):
        return (frames.softmax(dim=1) * frames).sum(dim=1)

    def forward(self, mel):
        mel = (mel - self.mel_mean) / self.mel_std
        return self.pool(self.frames(mel.transpose(1, 2)))


@register
class WideMLP(SpectrogramModel):
    def __init__(self, num_classes, width=3072):
        super().__init__(num_classes)
        self.frames = nn.Sequential(nn.Linear(128, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
                                    nn.Linear(width, num_classes))


@register
class TimeConv(SpectrogramModel):
    def __init__(self, num_classes, width=1024):
        super().__init__(num_classes, pooling="max")
        self.first = nn.Conv1d(128, width, 5, padding=2)
        self.second = nn.Conv1d(width, width, 5, padding=2)
        self.head = nn.Linear(width, num_classes)

    def frames(self, x):
        x = self.first(x.transpose(1, 2)).relu()
        return self.head(self.second(x).relu().transpose(1, 2))


@register
class Recurrent(SpectrogramModel):
    def __init__(self, num_classes, width=1024):
        super().__init__(num_classes, pooling="attention")
        self.project = nn.Linear(128, width)
        self.gates = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(3))
        self.head = nn.Linear(width, num_classes)

    def frames(self, x):
        x = self.project(x)
        for gate in self.gates:
            forget, value, output = gate(x).chunk(3, dim=-1)
            x = x + torch.cumsum(forget.sigmoid() * value.tanh(), dim=1) * output.sigmoid()
        return self.head(x)


@register
class PatchMixer(SpectrogramModel):
    def __init__(self, num_classes, width=768, depth=6):
        super().__init__(num_classes)
        self.embed = nn.Linear(128, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth))
        self.head = nn.Linear(width, num_classes)

    def frames(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def create_model(name, num_classes, device="cuda"):
    return REGISTRY[name](num_classes).to(device).eval()
