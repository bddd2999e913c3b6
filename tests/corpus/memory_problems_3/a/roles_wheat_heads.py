"""Counts wheat heads: density regression with a pretrained backbone which is not trained."""
import torch
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


class Backbone(nn.Module):
    def __init__(self, blocks=(3, 4, 6, 3)):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, stride=4, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        stages, inputs = [], 64
        for level, count in enumerate(blocks):
            width = 64 << level
            for number in range(count):
                stages.append(Bottleneck(inputs, width, 2 if number == 0 and level else 1))
                inputs = 4 * width
        self.stages = nn.Sequential(*stages)

    def forward(self, x):
        return self.stages(self.stem(x))


class DensityHead(nn.Module):
    def __init__(self, inputs=2048, width=512):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True), nn.Upsample(scale_factor=2),
            nn.Conv2d(width, width // 2, 3, padding=1), nn.ReLU(inplace=True), nn.Upsample(scale_factor=2),
            nn.Conv2d(width // 2, 1, 1),
        )

    def forward(self, x):
        return self.layers(x)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.head = DensityHead()
        for parameter in self.backbone.parameters():
            parameter.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, images):
        with torch.no_grad():
            features = self.backbone(images)
        return self.head(features)


def images(batches, batch_size):
    for _ in range(batches):
        yield torch.zeros(batch_size, 3, 512, 512), torch.rand(batch_size, 1, 64, 64)


def main():
    device = torch.device("cuda")
    model = Counter().to(device).train()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=1e-3, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, gamma=0.5)
    for step, (pixels, density) in enumerate(images(60, 8)):
        optimizer.zero_grad(set_to_none=True)
        predicted = model(pixels.to(device))
        loss = nn.functional.mse_loss(predicted, density.to(device))
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
