import torch
from torch import nn


class MaskMemoryNet(nn.Module):
    """Image encoder, memory attention over the last frames, mask decoder and memory encoder."""

    def __init__(self, width=256, memory_width=64, num_maskmem=7):
        super().__init__()
        self.num_maskmem = num_maskmem
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=4, padding=3), nn.GELU(),
            nn.Conv2d(64, width, 3, stride=4, padding=1), nn.GELU(),
        )
        self.attention = nn.MultiheadAttention(width, 8, kdim=memory_width, vdim=memory_width, batch_first=True)
        self.mask_head = nn.Conv2d(width, 1, 1)
        self.pointer_head = nn.Linear(width, width)
        self.memory_encoder = nn.Conv2d(width + 1, memory_width, 3, padding=1)

    def forward_image(self, frame):
        return self.encoder(frame)

    def track(self, features, memories):
        batch, width, height, breadth = features.shape
        if memories:
            tokens = features.flatten(2).transpose(1, 2)
            keys = torch.cat([m.flatten(2).transpose(1, 2) for m in memories], dim=1)
            attended, _ = self.attention(tokens, keys, keys, need_weights=False)
            features = (tokens + attended).transpose(1, 2).reshape(batch, width, height, breadth)
        low_res_masks = self.mask_head(features)
        pointer = self.pointer_head(features.mean(dim=(2, 3)))
        memory = self.memory_encoder(torch.cat([features, low_res_masks.sigmoid()], dim=1))
        return low_res_masks, pointer, memory
