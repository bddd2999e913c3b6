"""Optimises a cloud of 3D Gaussians with periodic refinement and streams it to an interactive viewer."""
import dataclasses

import torch
import torch.nn.functional as F

FIELDS = {"means": 3, "quats": 4, "log_scales": 3, "logit_opacities": 1, "sh0": 3, "shN": 45}


class GaussianSplats:
    """Parameters of the Gaussians, one row each."""

    def __init__(self, tensors):
        self.tensors = {name: t.detach().requires_grad_() for name, t in tensors.items()}

    @classmethod
    def from_points(cls, count, device):
        return cls({name: torch.randn(count, width, device=device) for name, width in FIELDS.items()})

    def __len__(self):
        return self.tensors["means"].shape[0]

    def __getitem__(self, rows):
        return GaussianSplats({name: t.detach()[rows] for name, t in self.tensors.items()})

    def parameters(self):
        return list(self.tensors.values())

    def bounds(self):
        means = self.tensors["means"].detach()
        return means.amin(0).tolist(), means.amax(0).tolist()

    def render(self, pixels):
        rows = torch.randint(len(self), (pixels,)).to(self.tensors["means"].device)
        color = self.tensors["sh0"][rows] + self.tensors["shN"][rows].view(pixels, 15, 3).sum(1)
        alpha = torch.sigmoid(self.tensors["logit_opacities"][rows])
        shape = self.tensors["quats"][rows].norm(dim=-1, keepdim=True) * self.tensors["log_scales"][rows].exp()
        return alpha * color * shape * self.tensors["means"][rows].norm(dim=-1, keepdim=True)


class SplatView:
    def __init__(self, name, splats):
        self.name = name
        self.splats = splats
        self.count = len(splats)
        self.low, self.high = splats.bounds()
        self.visible = True

    def upload(self):
        """Packs positions for the browser; they stay in the page until the view is hidden."""
        return self.splats.tensors["means"].detach().half().cpu()

    def summary(self):
        return f"{self.name}: {self.count} gaussians"


class Viewer:
    def __init__(self, port):
        self.port = port
        self.views = {}
        self.page = {}

    def show(self, name, splats):
        for view in self.views.values():
            view.visible = False
        view = SplatView(name, splats)
        self.views[name] = view
        self.page = {name: view.upload()}
        return view

    def timeline(self):
        return [view.summary() for view in self.views.values()]


@dataclasses.dataclass
class Config:
    start: int = 500_000
    steps: int = 1600
    refine_every: int = 100
    relocate: float = 0.05
    pixels: int = 65536
    lr: float = 1e-3


class Reconstruction:
    def __init__(self, config, viewer, device="cuda"):
        self.config = config
        self.viewer = viewer
        self.splats = GaussianSplats.from_points(config.start, device)
        self.reset_optimizer()
        self.viewer.show("init", self.splats)

    def reset_optimizer(self):
        self.optimizer = torch.optim.SGD(self.splats.parameters(), lr=self.config.lr)

    def refine(self, step):
        count = len(self.splats)
        keep = torch.arange(int(count * (1 - self.config.relocate)))
        split = torch.randint(len(keep), (count - len(keep),))
        self.splats = self.splats[torch.cat([keep, split]).to("cuda")]
        self.reset_optimizer()
        self.viewer.show(f"step {step}", self.splats)

    def run(self):
        for step in range(1, self.config.steps + 1):
            image = self.splats.render(self.config.pixels)
            loss = F.l1_loss(image, torch.zeros_like(image))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if step % self.config.refine_every == 0:
                self.refine(step)


if __name__ == "__main__":
    torch.manual_seed(0)
    viewer = Viewer(port=8080)
    Reconstruction(Config(), viewer).run()
    print("\n".join(viewer.timeline()))
    print(f"allocated {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
