"""Kind of report: "torch.load in a loop fills the GPU" (PyTorch issues; scripts that average checkpoints, "model soups").

True cause: map_location="cuda" puts every checkpoint on the device, optimizer state included, and the list keeps all of
them until the average is made; the model itself needs a small part of that.
The line: `checkpoints = [torch.load(path, map_location="cuda") for path in paths]`.
Cure: load one at a time with map_location="cpu" and add only its "model" entry to a running sum.
"""

import pathlib
import tempfile

import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 512))


def save_checkpoints(folder, count):
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(count):
        model(torch.zeros(2, 1024)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, folder / f"checkpoint-{epoch:03d}.pt")


def average(paths):
    checkpoints = [torch.load(path, map_location="cuda") for path in paths]  # CAUSE
    averaged = {}
    for name in checkpoints[0]["model"]:
        averaged[name] = torch.stack([c["model"][name].float() for c in checkpoints]).mean(0)
    return averaged


def validate(model, batches=60):
    model.eval()
    correct = 0
    with torch.no_grad():
        for _ in range(batches):
            x = torch.randn(128, 1024).cuda()
            y = torch.randint(0, 512, (128,)).cuda()
            correct += (model(x).argmax(-1) == y).sum().item()
    return correct / (128 * batches)


def main():
    torch.manual_seed(23)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        save_checkpoints(folder, count=8)
        paths = sorted(folder.glob("checkpoint-*.pt"))
        model = build().cuda()
        for last in (2, 4, 8):
            model.load_state_dict(average(paths[-last:]))
            print(f"average of the last {last}: accuracy {validate(model):.3f}", flush=True)


if __name__ == "__main__":
    main()
