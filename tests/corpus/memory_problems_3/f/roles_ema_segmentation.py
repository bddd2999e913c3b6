"""Road segmentation; the validation model is an exponential moving average."""
import copy
import logging

import torch
import torch.nn as nn
import torch.nn.functional as F

from membook import PeakWatch, gradients, optimizer_tensors, report, storage_bytes

logger = logging.getLogger("roads")


class ConvBn(nn.Sequential):
    def __init__(self, cin, cout, stride=1):
        super().__init__(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


class RoadNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.enc1 = nn.Sequential(ConvBn(3, width), ConvBn(width, width))
        self.enc2 = nn.Sequential(ConvBn(width, 2 * width, 2), ConvBn(2 * width, 2 * width))
        self.enc3 = nn.Sequential(ConvBn(2 * width, 4 * width, 2), ConvBn(4 * width, 4 * width))
        self.dec2 = ConvBn(6 * width, 2 * width)
        self.dec1 = ConvBn(3 * width, width)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(a)
        c = self.enc3(b)
        b = self.dec2(torch.cat([b, F.interpolate(c, scale_factor=2)], 1))
        a = self.dec1(torch.cat([a, F.interpolate(b, scale_factor=2)], 1))
        return self.out(a)


class ModelEma:
    def __init__(self, model, decay=0.99):
        self.module = copy.deepcopy(model).eval()
        self.module.requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.parameters(), model.parameters()):
            e.lerp_(p, 1 - self.decay)
        for e, b in zip(self.module.buffers(), model.buffers()):
            e.copy_(b)


def batch(n=6, size=96):
    return torch.rand(n, 3, size, size).cuda(), torch.randint(0, 2, (n, size, size)).cuda()


def main():
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(7)
    model = RoadNet().cuda()
    ema = ModelEma(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    watch = PeakWatch()
    sizes = {}
    for step in range(1, 21):
        images, masks = batch()
        loss = F.cross_entropy(model(images), masks)
        watch.check(step, "forward")
        optimizer.zero_grad()
        loss.backward()
        watch.check(step, "backward")
        if step == 15:
            sizes["parameters"] = storage_bytes([*model.parameters(), *ema.module.parameters()])
            sizes["buffers"] = storage_bytes([*model.buffers(), *ema.module.buffers()])
            sizes["gradients"] = storage_bytes(gradients(model))
            sizes["optimizer state"] = storage_bytes(optimizer_tensors(optimizer))
            sizes["activations"] = 0
            sizes["inputs"] = storage_bytes([images, masks])
        optimizer.step()
        watch.check(step, "optimizer step")
        ema.update(model)
        watch.check(step, "ema update")
        if step % 10 == 0:
            logger.info("step %d loss %.4f", step, loss.item())
    report(watch, sizes)


if __name__ == "__main__":
    main()
