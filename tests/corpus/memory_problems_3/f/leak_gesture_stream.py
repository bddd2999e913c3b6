"""Online gesture recognition: sliding windows over a depth camera stream."""
import random
import statistics
import time

import torch
import torch.nn as nn

GESTURES = ["swipe-left", "swipe-right", "push", "pull", "circle", "none"]


class DepthCamera:
    def __init__(self, frames, height=120, width=160, seed=0):
        self.frames = frames
        self.shape = (height, width)
        self.rng = random.Random(seed)
        self.background = torch.rand(height, width)

    def read(self):
        for _ in range(self.frames):
            row = self.rng.randrange(self.shape[0] - 20)
            frame = self.background.clone()
            frame[row:row + 20] *= 0.5
            yield frame


def preprocess(frame, device):
    frame = frame.to(device)
    frame = (frame - 0.5) / 0.29
    gy = frame[1:, :-1] - frame[:-1, :-1]
    gx = frame[:-1, 1:] - frame[:-1, :-1]
    return torch.stack([frame[:-1, :-1], gx, gy])


def windows(source, length, stride, device):
    """Yields overlapping clips of `length` preprocessed frames."""
    frames = []
    for frame in source:
        frames.append(preprocess(frame, device))
        if len(frames) >= length and len(frames) % stride == 0:
            yield torch.stack(frames[-length:], dim=1).unsqueeze(0)


class ClipNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.spatial = nn.Conv2d(3, width, 5, stride=4)
        self.temporal = nn.Linear(width, width)
        self.attend = nn.Linear(width, 1)
        self.classify = nn.Linear(width, len(GESTURES))

    def forward(self, clip):
        b, c, t, h, w = clip.shape
        x = self.spatial(clip.transpose(1, 2).reshape(b * t, c, h, w)).relu()
        x = x.mean((2, 3)).view(b, t, -1)
        x = torch.tanh(self.temporal(x))
        weights = self.attend(x).softmax(1)
        return self.classify((weights * x).sum(1))


class Smoother:
    def __init__(self, decay=0.8):
        self.decay, self.state = decay, None

    def __call__(self, probs):
        self.state = probs if self.state is None else self.decay * self.state + (1 - self.decay) * probs
        return self.state


@torch.inference_mode()
def recognise(camera, model, length=8, stride=2):
    smooth = Smoother()
    times = []
    for number, clip in enumerate(windows(camera.read(), length, stride, torch.device("cuda")), 1):
        begin = time.perf_counter()
        probs = smooth(model(clip).softmax(-1)[0]).cpu()
        times.append(time.perf_counter() - begin)
        if number % 50 == 0:
            print(f"{number} clips, {GESTURES[int(probs.argmax())]}, {1e3 * statistics.median(times):.1f} ms")
    return times


def main():
    torch.manual_seed(4)
    model = ClipNet().cuda().eval()
    times = recognise(DepthCamera(frames=300), model)
    print(f"{len(times)} clips in {sum(times):.2f} s")


if __name__ == "__main__":
    main()
