"""Fit coloured Gaussians to the photos of a room; the set is densified on a fixed timetable."""
import math
import sys
import time

import torch
import torch.nn.functional as F

DEV = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
START = 320_000
ITERS = 132
DENSIFY_EVERY = 11
DENSIFY_UNTIL = 125
GROW = 0.07
H, W = 270, 480

LR = {"xyz": 1.6e-4, "sh": 2.5e-3, "opacity": 5e-2, "scale": 5e-3, "rot": 1e-3}


def cameras(n, seed):
    g = torch.Generator().manual_seed(seed)
    out = []
    for i in range(n):
        a = 2 * math.pi * i / n
        rot = torch.tensor([[math.cos(a), 0, math.sin(a)], [0, 1, 0], [-math.sin(a), 0, math.cos(a)]])
        photo = torch.rand(H * W, 3, generator=g)
        out.append((rot.float(), torch.tensor([0.0, 0.0, 4.0]), photo))
    return out


class Cloud:
    def __init__(self, n, total_iters):
        self.total_iters = total_iters
        init = {
            "xyz": torch.randn(n, 3, device=DEV),
            "sh": torch.zeros(n, 16, 3, device=DEV),
            "opacity": torch.full((n, 1), -2.0, device=DEV),
            "scale": torch.full((n, 3), -4.0, device=DEV),
            "rot": F.normalize(torch.randn(n, 4, device=DEV), dim=1),
        }
        self.schedules = []
        self.install(init)

    def __len__(self):
        return self.params["xyz"].shape[0]

    def install(self, tensors, done=0):
        """Make the tensors trainable and set up optimizer and learning-rate schedule for them."""
        self.params = {k: t.detach().clone().requires_grad_(True) for k, t in tensors.items()}
        groups = [{"params": [p], "lr": LR[k], "name": k} for k, p in self.params.items()]
        self.opt = torch.optim.Adam(groups, eps=1e-15)
        final = 0.01
        decay = lambda it: final ** ((it + done) / self.total_iters)
        flat = lambda it: 1.0
        self.schedules.append(torch.optim.lr_scheduler.LambdaLR(
            self.opt, [decay if g["name"] == "xyz" else flat for g in groups]))

    def step(self):
        self.opt.step()
        for s in self.schedules:
            s.step()
        self.opt.zero_grad(set_to_none=True)

    @torch.no_grad()
    def densify(self, gen, done):
        n = len(self)
        pick = torch.randperm(n, generator=gen)[: int(n * GROW)].to(DEV)
        grown = {}
        for k, p in self.params.items():
            child = p[pick]
            if k == "xyz":
                child = child + 0.01 * torch.randn_like(child)
            if k == "scale":
                child = child - math.log(1.6)
            grown[k] = torch.cat([p, child])
        self.install(grown, done)


def rasterise(cloud, rot, shift):
    """Cheap point splat: project, weight by opacity and footprint, scatter into the frame."""
    p = cloud.params
    cam = p["xyz"] @ rot.t() + shift
    depth = cam[:, 2:3].clamp_min(0.1)
    uv = cam[:, :2] / depth
    col = (uv[:, 0].detach() * 200 + W / 2).clamp(0, W - 1).long()
    row = (uv[:, 1].detach() * 200 + H / 2).clamp(0, H - 1).long()
    size = p["scale"].exp().prod(1, keepdim=True).pow(1 / 3) * F.normalize(p["rot"], dim=1)[:, :1].abs()
    weight = torch.sigmoid(p["opacity"]) * size / depth
    colour = torch.sigmoid(p["sh"].mean(1))
    frame = torch.zeros(H * W, 4, device=DEV)
    frame = frame.index_add(0, (row * W + col).remainder(H * W), torch.cat([colour * weight, weight], 1))
    return frame[:, :3] / (frame[:, 3:] + 1e-6)


def main():
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(8)
    views = cameras(12, seed=8)
    cloud = Cloud(START, ITERS)
    t0 = time.time()
    for it in range(1, ITERS + 1):
        rot, shift, photo = views[it % len(views)]
        image = rasterise(cloud, rot.to(DEV), shift.to(DEV))
        loss = (image - photo.to(DEV)).abs().mean()
        loss.backward()
        cloud.step()
        if it % DENSIFY_EVERY == 0 and it < DENSIFY_UNTIL:
            cloud.densify(gen, it)
            print(f"iter {it:4d}  loss {loss.item():.4f}  gaussians {len(cloud)}  {time.time() - t0:.1f}s", flush=True)
    print("finished with", len(cloud), "gaussians")


if __name__ == "__main__":
    main()
