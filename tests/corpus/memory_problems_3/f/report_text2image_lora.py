"""LoRA fine-tuning of a latent text-to-image denoiser on a small caption set."""
import argparse
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_batch_size", type=int, default=2)
    parser.add_argument("--max_train_steps", type=int, default=80)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1337)
    return parser.parse_args()


class LoRALayer(nn.Module):
    def __init__(self, dim, rank):
        super().__init__()
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim, bias=False)
        nn.init.normal_(self.down.weight, std=1 / rank)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.up(self.down(x))


class CrossAttention(nn.Module):
    def __init__(self, dim, ctx_dim, heads=8):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(ctx_dim, dim, bias=False)
        self.to_v = nn.Linear(ctx_dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.processor = None

    def forward(self, x, context):
        b, n, d = x.shape
        q = self.to_q(x)
        if self.processor is not None:
            q = q + self.processor(x)
        split = lambda t: t.view(b, -1, self.heads, d // self.heads).transpose(1, 2)
        out = F.scaled_dot_product_attention(split(q), split(self.to_k(context)), split(self.to_v(context)))
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))


class DenoiserBlock(nn.Module):
    def __init__(self, dim, ctx_dim):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.attn1 = CrossAttention(dim, dim)
        self.attn2 = CrossAttention(dim, ctx_dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, context):
        h = self.norms[0](x)
        x = x + self.attn1(h, h)
        x = x + self.attn2(self.norms[1](x), context)
        return x + self.ff(self.norms[2](x))


class Denoiser(nn.Module):
    def __init__(self, channels=4, dim=640, ctx_dim=512, depth=8):
        super().__init__()
        self.proj_in = nn.Linear(channels, dim)
        self.time = nn.Embedding(1000, dim)
        self.blocks = nn.ModuleList(DenoiserBlock(dim, ctx_dim) for _ in range(depth))
        self.proj_out = nn.Linear(dim, channels)

    def forward(self, latents, timesteps, context):
        b, c, h, w = latents.shape
        x = self.proj_in(latents.flatten(2).transpose(1, 2)) + self.time(timesteps).unsqueeze(1)
        for block in self.blocks:
            x = block(x, context)
        return self.proj_out(x).transpose(1, 2).reshape(b, c, h, w)


class TextEncoder(nn.Module):
    def __init__(self, vocab=8000, dim=512):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 8, 1024, batch_first=True, dropout=0.0)
        self.enc = nn.TransformerEncoder(layer, 2)

    def forward(self, ids):
        return self.enc(self.emb(ids))


class VAEEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 32, 4, stride=4), nn.SiLU(), nn.Conv2d(32, 4, 2, stride=2))

    def forward(self, pixels):
        return self.net(pixels) * 0.18215


def add_lora(unet, rank):
    lora_layers = nn.ModuleList()
    for block in unet.blocks:
        for attn in (block.attn1, block.attn2):
            lora = LoRALayer(attn.to_q.in_features, rank)
            attn.processor = lora
            lora_layers.append(lora)
    return lora_layers


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda")

    text_encoder = TextEncoder().to(device)
    vae = VAEEncoder().to(device)
    unet = Denoiser().to(device)
    vae.requires_grad_(False)
    text_encoder.requires_grad_(False)

    lora_layers = add_lora(unet, args.rank).to(device)
    optimizer = torch.optim.AdamW(lora_layers.parameters(), lr=args.learning_rate)

    dataset = TensorDataset(torch.rand(40, 3, 128, 128), torch.randint(0, 8000, (40, 24)))
    loader = DataLoader(dataset, batch_size=args.train_batch_size, shuffle=True, drop_last=True)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    for step, (pixels, ids) in zip(range(args.max_train_steps), batches):
        latents = vae(pixels.to(device))
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, 1000, (latents.shape[0],)).to(device)
        noisy = 0.7 * latents + 0.7 * noise
        context = text_encoder(ids.to(device))
        model_pred = unet(noisy, timesteps, context)
        loss = F.mse_loss(model_pred, noise, reduction="mean")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step} loss {loss.detach().item():.4f}")

    print(f"saving {sum(p.numel() for p in lora_layers.parameters())} adapter weights")


if __name__ == "__main__":
    main()
