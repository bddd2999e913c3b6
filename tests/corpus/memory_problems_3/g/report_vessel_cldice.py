"""Retinal vessel segmentation with a topology-aware loss (Dice plus centre-line Dice)."""
import argparse
import logging

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

logger = logging.getLogger("vessels")


class SoftSkeletonize(nn.Module):
    """Morphological thinning built from min- and max-pooling."""

    def __init__(self, num_iter=40):
        super().__init__()
        self.num_iter = num_iter

    def soft_erode(self, img):
        p1 = -F.max_pool2d(-img, (3, 1), (1, 1), (1, 0))
        p2 = -F.max_pool2d(-img, (1, 3), (1, 1), (0, 1))
        return torch.min(p1, p2)

    def soft_dilate(self, img):
        return F.max_pool2d(img, (3, 3), (1, 1), (1, 1))

    def soft_open(self, img):
        return self.soft_dilate(self.soft_erode(img))

    def soft_skel(self, img):
        img1 = self.soft_open(img)
        skel = F.relu(img - img1)
        for _ in range(self.num_iter):
            img = self.soft_erode(img)
            img1 = self.soft_open(img)
            delta = F.relu(img - img1)
            skel = skel + F.relu(delta - skel * delta)
        return skel

    def forward(self, img):
        return self.soft_skel(img)


class SoftDiceClDice(nn.Module):
    def __init__(self, num_iter=40, alpha=0.5, smooth=1.0):
        super().__init__()
        self.skeletonize = SoftSkeletonize(num_iter)
        self.alpha, self.smooth = alpha, smooth

    def soft_dice(self, y_true, y_pred):
        intersection = (y_true * y_pred).sum()
        return 1 - (2 * intersection + self.smooth) / (y_true.sum() + y_pred.sum() + self.smooth)

    def forward(self, y_true, y_pred):
        dice = self.soft_dice(y_true, y_pred)
        skel_pred = self.skeletonize(y_pred)
        skel_true = self.skeletonize(y_true)
        precision = ((skel_pred * y_true).sum() + self.smooth) / (skel_pred.sum() + self.smooth)
        recall = ((skel_true * y_pred).sum() + self.smooth) / (skel_true.sum() + self.smooth)
        cl_dice = 1 - 2 * precision * recall / (precision + recall)
        return (1 - self.alpha) * dice + self.alpha * cl_dice


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class SmallUNet(nn.Module):
    def __init__(self, base=12):
        super().__init__()
        self.down1, self.down2, self.mid = double_conv(3, base), double_conv(base, 2 * base), double_conv(2 * base, 4 * base)
        self.up2 = double_conv(6 * base, 2 * base)
        self.up1 = double_conv(3 * base, base)
        self.out = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        d1 = self.down1(x)
        d2 = self.down2(F.max_pool2d(d1, 2))
        m = self.mid(F.max_pool2d(d2, 2))
        u2 = self.up2(torch.cat([F.interpolate(m, scale_factor=2), d2], 1))
        u1 = self.up1(torch.cat([F.interpolate(u2, scale_factor=2), d1], 1))
        return torch.sigmoid(self.out(u1))


class FundusCrops:
    """Random crops with branching line drawings as masks."""

    def __init__(self, size, batch_size, seed=0):
        self.size, self.batch_size = size, batch_size
        self.rng = np.random.default_rng(seed)

    def _mask(self):
        mask = np.zeros((self.size, self.size), np.float32)
        for _ in range(12):
            path = self.rng.integers(0, self.size, 2) + np.cumsum(self.rng.normal(0, 2, (300, 2)), 0)
            y, x = np.clip(path.astype(int), 1, self.size - 2).T
            for dy in (-1, 0, 1):
                mask[y + dy, x] = 1
        return mask

    def __call__(self):
        masks = np.stack([self._mask() for _ in range(self.batch_size)])[:, None]
        images = np.repeat(masks, 3, axis=1) * 0.3 + self.rng.random((1, 3, 1, 1), dtype=np.float32)
        return torch.from_numpy(images), torch.from_numpy(masks)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--crop", type=int, default=384)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)

    net = SmallUNet().cuda()
    criterion = SoftDiceClDice()
    optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    next_batch = FundusCrops(args.crop, args.batch_size)
    for step in range(args.steps):
        image, mask = (t.cuda() for t in next_batch())
        optimizer.zero_grad()
        loss = criterion(mask, net(image))
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            logger.info("step %d loss %.4f lr %.2e", step, loss.item(), scheduler.get_last_lr()[0])


if __name__ == "__main__":
    main()
