"""Self-attentive sequential recommender with bucketed distance biases."""
import functools
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class AttentionLayer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ffn = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(),
            nn.Dropout(dropout), nn.Linear(2 * width, width),
        )

    def forward(self, x, bias):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (z.reshape(b, t, self.heads, -1).transpose(1, 2) for z in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.proj(attended.transpose(1, 2).reshape(b, t, w))
        return x + self.ffn(x)


class SequenceRecommender(nn.Module):
    def __init__(self, num_items, width, depth, heads, dropout, max_distance=128, buckets=16):
        super().__init__()
        self.heads = heads
        self.buckets = buckets
        self.max_distance = max_distance
        self.items = nn.Embedding(num_items, width, padding_idx=0)
        self.distance_table = nn.Embedding(buckets, heads)
        self.layers = nn.ModuleList(AttentionLayer(width, heads, dropout) for _ in range(depth))
        self.final_norm = nn.LayerNorm(width)

    @functools.lru_cache(maxsize=64)
    def distance_buckets(self, length):
        position = torch.arange(length)
        distance = (position[:, None] - position[None, :]).clamp(min=0).float()
        scale = (self.buckets - 1) / math.log1p(self.max_distance)
        bucket = (torch.log1p(distance) * scale).long().clamp(max=self.buckets - 1)
        future = torch.full((length, length), float("-inf")).triu(1)
        device = self.items.weight.device
        return bucket.to(device), future.to(device)

    def attention_bias(self, length):
        bucket, future = self.distance_buckets(length)
        return self.distance_table(bucket).permute(2, 0, 1) + future

    def forward(self, history):
        x = self.items(history)
        bias = self.attention_bias(history.shape[1])
        for layer in self.layers:
            x = layer(x, bias)
        return self.final_norm(x)

    def pair_loss(self, history, positive, negative):
        state = self(history)
        pos = (state * self.items(positive)).sum(-1)
        neg = (state * self.items(negative)).sum(-1)
        return F.softplus(neg - pos).mean()
