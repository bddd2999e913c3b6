"""Mask tracker with a memory of recent frames."""
from dataclasses import dataclass, field

import torch
import torch.nn as nn

from .backbone import FrameEncoder, MaskHead


@dataclass
class Session:
    pointers: torch.Tensor
    anchor: dict = None
    history: dict = field(default_factory=dict)


class PlayerTracker(nn.Module):
    def __init__(self, width=128, window=6):
        super().__init__()
        self.window = window
        self.encoder = FrameEncoder(width)
        self.read = nn.MultiheadAttention(width, 4, batch_first=True)
        self.update = nn.GRUCell(width, width)
        self.head = MaskHead(width)
        self.memory_conv = nn.Conv2d(width + 1, width, 1)
        self.first_pointers = nn.Parameter(torch.randn(22, width) * 0.02)

    def open(self):
        return Session(pointers=self.first_pointers.detach().clone()[None])

    def recall(self, session, index):
        entries = [] if session.anchor is None else [session.anchor]
        for offset in range(1, self.window + 1):
            if index - offset in session.history:
                entries.append(session.history[index - offset])
        if not entries:
            return None
        return torch.cat([e["memory"].flatten(2).transpose(1, 2) for e in entries], dim=1)

    def remember(self, feature, logits):
        coverage = nn.functional.interpolate(
            logits.sigmoid().amax(1, keepdim=True), size=feature.shape[-2:], mode="bilinear")
        return self.memory_conv(torch.cat([feature, coverage], dim=1))

    @torch.inference_mode()
    def advance(self, session, index, frame):
        feature = self.encoder(frame)
        memory = self.recall(session, index)
        pointers = session.pointers
        if memory is not None:
            context, _ = self.read(pointers, memory, memory, need_weights=False)
            pointers = self.update(context[0], pointers[0])[None]
        logits = self.head(feature, pointers)
        record = {"memory": self.remember(feature, logits), "logits": logits, "pointers": pointers}
        if session.anchor is None:
            session.anchor = record
        else:
            session.history[index] = record
        session.pointers = pointers
        return logits
