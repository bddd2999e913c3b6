# Reconstruct perceived images from decoded brain activity (iCNN with a generator prior).
import argparse

import numpy as np
import torch
import torch.nn.functional as F

from reconlab.features import FeatureExtractor
from reconlab.models import Encoder, Generator

LAYERS = ["block1", "block2", "block3"]
SHAPES = {"block1": (32, 80, 80), "block2": (64, 40, 40), "block3": (128, 20, 20)}


def load_decoded_features(subject, image_id, n_repeats):
    """Decoded features come as float32 arrays, one per layer."""
    rng = np.random.default_rng([ord(c) for c in subject] + [image_id])
    return {layer: rng.standard_normal((n_repeats, *SHAPES[layer]), dtype=np.float32) for layer in LAYERS}


def layer_weights(targets):
    norms = {k: float(np.sqrt((v ** 2).mean())) for k, v in targets.items()}
    total = sum(1 / n for n in norms.values())
    return {k: 1 / n / total for k, n in norms.items()}


class Critic:
    def __init__(self, weights):
        self.weights = weights

    def __call__(self, features, targets):
        loss = 0
        for layer, feature in features.items():
            loss = loss + self.weights[layer] * F.mse_loss(feature, targets[layer])
        return loss


def reconstruct(targets, encoder, generator, n_iter, lr, device):
    weights = layer_weights(targets)
    targets = {k: torch.from_numpy(v).to(device) for k, v in targets.items()}
    extractor = FeatureExtractor(encoder, LAYERS, detach=False)
    critic = Critic(weights)
    n_images = next(iter(targets.values())).shape[0]
    latent = torch.zeros(n_images, 256, device=device, requires_grad=True)
    optimizer = torch.optim.AdamW([latent], lr=lr)
    losses = []
    for _ in range(n_iter):
        optimizer.zero_grad()
        image = generator(latent)
        loss = critic(extractor.run(image), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        image = generator(latent).clamp(0, 1).cpu().numpy()
    return image, losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--subjects", nargs="+", default=["S1", "S2", "S3"])
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=30)
    args = parser.parse_args()

    device = torch.device("cuda")
    encoder = Encoder().to(device).eval().requires_grad_(False)
    generator = Generator().to(device).eval().requires_grad_(False)

    for subject in args.subjects:
        for image_id in range(args.images):
            targets = load_decoded_features(subject, image_id, args.repeats)
            image, losses = reconstruct(targets, encoder, generator, args.iterations, 0.05, device)
            print(f"{subject} image {image_id:03d}: {image.shape[1:]} loss {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
