"""Paint wall textures for a game level: every texture is optimised towards one reference painting."""
import sys
import time

import numpy as np
import torch

from muralkit.canvas import Canvas, smoothness
from muralkit.encoder import build_encoder
from muralkit.matching import FeatureMatcher

SIZE = 384
ROUNDS = 5
LEVELS = ("early", "shapes", "parts")


def load_references(count, seed):
    rng = np.random.default_rng(seed)
    for index in range(count):
        base = rng.random((3, SIZE // 16, SIZE // 16), dtype=np.float32)
        picture = base.repeat(16, axis=1).repeat(16, axis=2)
        yield f"mural_{index:02d}", torch.from_numpy(picture)


def paint(encoder, reference, device):
    matcher = FeatureMatcher(encoder, LEVELS)
    matcher.set_reference(reference.unsqueeze(0).to(device))
    canvas = Canvas(SIZE).to(device)
    optimizer = torch.optim.Adam(canvas.parameters(), lr=0.03)
    for _ in range(ROUNDS):
        optimizer.zero_grad()
        picture = canvas()
        loss = matcher.distance(picture) + 1e-3 * smoothness(picture)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return canvas().clamp(0, 1).mul(255).byte().cpu()


def main():
    device = torch.device(sys.argv[1])
    torch.manual_seed(9)
    encoder = build_encoder().to(device)
    textures = {}
    for name, reference in load_references(count=14, seed=9):
        began = time.time()
        textures[name] = paint(encoder, reference, device)
        print(f"{name}: {ROUNDS} rounds, {time.time() - began:.2f} s")
    print("painted", len(textures), "textures")


if __name__ == "__main__":
    main()
