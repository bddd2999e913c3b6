"""Closed-loop rollout of a world-action model: predict the next latents, pick an action chunk."""
import argparse
import logging
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

logging.basicConfig(format="[%(levelname)s] %(message)s", level=logging.INFO)
logger = logging.getLogger("world_action")

CONFIG = dict(dim=768, heads=12, layers=6, action_dim=14, chunk=16, latent_tokens=196, latent_dim=48)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norm2(x))


class MoT(nn.Module):
    """Shared trunk with a video head and an action head."""

    def __init__(self, dim, heads, layers, action_dim, chunk, latent_tokens, latent_dim):
        super().__init__()
        self.embed_latent = nn.Linear(latent_dim, dim)
        self.embed_action = nn.Linear(action_dim, dim)
        self.pos = nn.Parameter(torch.zeros(1, latent_tokens + chunk, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.video_head = nn.Linear(dim, latent_dim)
        self.action_head = nn.Linear(dim, action_dim)

    def forward(self, latent, action):
        n = latent.shape[1]
        x = torch.cat([self.embed_latent(latent), self.embed_action(action)], 1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.video_head(x[:, :n]), self.action_head(x[:, n:])


class WorldActionModel:
    def __init__(self, config, device):
        self.config = config
        self.device = torch.device(device)
        self.mot = MoT(**config).to(self.device)

    def load_checkpoint(self, path):
        payload = torch.load(path, map_location=self.device)
        weights = payload["ema"] if payload.get("use_ema") else payload["mot"]
        missing = self.mot.load_state_dict(weights, strict=True)
        logger.info("loaded step %d from %s (%s)", payload["step"], os.path.basename(path), missing)
        return payload["step"]

    @torch.inference_mode()
    def infer(self, latent, steps=4):
        action = torch.randn(latent.shape[0], self.config["chunk"], self.config["action_dim"], device=self.device)
        video = latent
        for _ in range(steps):
            velocity, action_velocity = self.mot(video, action)
            video = video + velocity / steps
            action = action + action_velocity / steps
        return action, video


def export_checkpoint(path, config):
    """Stands in for the trainer: weights, their moving average and the optimizer's moments."""
    mot = MoT(**config)
    weights = mot.state_dict()
    moments = {k: {"exp_avg": torch.zeros_like(v), "exp_avg_sq": torch.zeros_like(v)} for k, v in weights.items()}
    payload = {"mot": weights, "ema": {k: v.clone() for k, v in weights.items()}, "use_ema": True,
               "optimizer": moments, "step": 40000}
    torch.save(payload, path)


def observe(step, config, batch=1):
    gen = torch.Generator().manual_seed(step)
    return torch.randn(batch, config["latent_tokens"], config["latent_dim"], generator=gen)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--ckpt")
    ap.add_argument("--episode-steps", type=int, default=80)
    args = ap.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        path = args.ckpt or os.path.join(folder, "step_040000.pt")
        if not args.ckpt:
            export_checkpoint(path, CONFIG)
        model = WorldActionModel(CONFIG, "cuda")
        model.load_checkpoint(path)

    start = time.time()
    for step in range(args.episode_steps):
        latent = observe(step, CONFIG).to(model.device)
        action, _ = model.infer(latent)
        command = action[0, 0].cpu().tolist()
        if step % 20 == 0:
            logger.info("step %d: %d joints commanded", step, len(command))
    logger.info("%.1f Hz", args.episode_steps / (time.time() - start))


if __name__ == "__main__":
    main()
