"""Transcribe a folder of recordings, then align words to the audio.

usage: report_transcribe_align.py [--files N] [--compute-type float16]
"""
import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

SAMPLE_RATE = 16000


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, context):
        b, n, d = x.shape
        split = lambda t: t.view(b, t.shape[1], self.heads, -1).transpose(1, 2)
        k, v = self.kv(context).chunk(2, -1)
        y = F.scaled_dot_product_attention(split(self.q(x)), split(k), split(v))
        return self.o(y.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads, cross=False):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.cross = Attention(dim, heads) if cross else None
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, memory=None):
        h = self.n1(x)
        x = x + self.attn(h, h)
        if self.cross is not None:
            x = x + self.cross(x, memory)
        return x + self.mlp(self.n2(x))


class SpeechModel(nn.Module):
    def __init__(self, dim=768, layers=12, vocab=8000):
        super().__init__()
        self.inp = nn.Linear(80, dim)
        self.encoder = nn.ModuleList(Block(dim, 12) for _ in range(layers))
        self.tok = nn.Embedding(vocab, dim)
        self.decoder = nn.ModuleList(Block(dim, 12, cross=True) for _ in range(layers // 2))
        self.out = nn.Linear(dim, vocab)

    def encode(self, mel):
        x = self.inp(mel)
        for block in self.encoder:
            x = block(x)
        return x

    @torch.inference_mode()
    def transcribe(self, mel, max_tokens=4):
        memory = self.encode(mel)
        tokens = torch.zeros(mel.shape[0], 1, dtype=torch.long, device=mel.device)
        for _ in range(max_tokens):
            x = self.tok(tokens)
            for block in self.decoder:
                x = block(x, memory)
            tokens = torch.cat([tokens, self.out(x[:, -1:]).argmax(-1)], dim=1)
        return tokens.cpu()


class AlignModel(nn.Module):
    def __init__(self, dim=768, layers=14, n_phones=64):
        super().__init__()
        self.inp = nn.Linear(320, dim)
        self.blocks = nn.ModuleList(Block(dim, 12) for _ in range(layers))
        self.out = nn.Linear(dim, n_phones)

    @torch.inference_mode()
    def forward(self, wave):
        x = self.inp(wave.view(wave.shape[0], -1, 320))
        for block in self.blocks:
            x = block(x)
        return self.out(x).log_softmax(-1).cpu()


def load_model(cls, dtype):
    torch.set_default_dtype(dtype)
    try:
        with torch.device("cuda"):
            return cls().eval()
    finally:
        torch.set_default_dtype(torch.float32)


def recordings(n):
    rng = random.Random(2)
    for i in range(n):
        yield f"call_{i:03d}.wav", rng.randint(8, 24)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--compute-type", default="float16", choices=["float16", "float32"])
    args = parser.parse_args()
    dtype = getattr(torch, args.compute_type)

    # Part 1: VAD & ASR loop
    model = load_model(SpeechModel, dtype)
    results = []
    for name, seconds in recordings(args.files):
        mel = torch.randn(1, seconds * 50, 80).to("cuda", dtype)
        results.append((name, seconds, model.transcribe(mel)))
    print(f"transcribed {len(results)} files")

    # Part 2: align loop
    align_model = load_model(AlignModel, dtype)
    words = 0
    for name, seconds, tokens in results:
        wave = torch.randn(1, seconds * SAMPLE_RATE).to("cuda", dtype)
        emission = align_model(wave)
        words += min(tokens.shape[1], emission.shape[1])
    print(f"aligned {words} words")


if __name__ == "__main__":
    main()
