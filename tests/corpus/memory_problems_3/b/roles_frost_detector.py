"""Frost damage on blossoms: a new head and last stage on a backbone from another orchard."""
import torch
from torch import nn


def stage(cin, cout, blocks):
    layers = []
    for number in range(blocks):
        layers += [nn.Conv2d(cin if number == 0 else cout, cout, 3, stride=2 if number == 0 else 1, padding=1,
                             bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage1 = stage(3, 128, 2)
        self.stage2 = stage(128, 512, 3)
        self.stage3 = stage(512, 1024, 3)

    def forward(self, x):
        return self.stage3(self.stage2(self.stage1(x)))


class FrostDetector(nn.Module):
    def __init__(self, backbone, grades=5):
        super().__init__()
        self.backbone = backbone
        self.stage4 = stage(1024, 1024, 2)
        self.head = nn.Linear(1024, grades)
        self.register_buffer("mean", torch.tensor([0.48, 0.45, 0.40]).view(1, 3, 1, 1))
        self.register_buffer("prior", torch.full((grades, 512 * 512), 0.2))

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, image):
        with torch.no_grad():
            features = self.backbone(image - self.mean)
        return self.head(self.stage4(features).mean(dim=(2, 3))) + self.prior.mean(dim=1)


def blossoms(steps, batch):
    for number in range(steps):
        image = torch.full((batch, 3, 224, 224), (number % 5) / 5)
        yield image, torch.arange(batch).remainder(5)


def main():
    torch.manual_seed(0)
    backbone = Backbone().requires_grad_(False)
    detector = FrostDetector(backbone).cuda()
    trained = [p for p in detector.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    detector.train()
    for step, (image, grade) in enumerate(blossoms(60, 24), 1):
        loss = nn.functional.cross_entropy(detector(image.cuda()), grade.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
