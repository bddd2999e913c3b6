"""Recognition of isolated signs from short clips (3D convolutions), training and validation."""
import json
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CONFIG = {
    "classes": 226, "frames": 16, "size": 112, "train_clips": 192, "valid_clips": 144,
    "batch": 8, "valid_batch": 24, "epochs": 2, "lr": 3e-4,
}


class Clips(Dataset):
    def __init__(self, count, config, train):
        self.count = count
        self.shape = (3, config["frames"], config["size"], config["size"])
        self.classes = config["classes"]
        self.train = train

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        clip = torch.full(self.shape, (index % 17) / 17)
        if self.train and index % 2:
            clip = clip.flip(-1)
        return clip, index % self.classes


def block(cin, cout, stride):
    return nn.Sequential(
        nn.Conv3d(cin, cout, 3, stride=stride, padding=1, bias=False), nn.BatchNorm3d(cout), nn.ReLU(),
        nn.Conv3d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm3d(cout), nn.ReLU(),
    )


class SignNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Conv3d(3, 32, (3, 7, 7), stride=(1, 2, 2), padding=(1, 3, 3))
        self.stages = nn.Sequential(block(32, 64, 1), block(64, 128, 2), block(128, 256, 2))
        self.head = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Dropout(0.4), nn.Linear(256, classes))

    def forward(self, clips):
        return self.head(self.stages(self.stem(clips)))


def train_epoch(net, loader, optimizer, criterion):
    net.train()
    running = 0.0
    for clips, signs in loader:
        clips, signs = clips.cuda(), signs.cuda()
        optimizer.zero_grad()
        loss = criterion(net(clips), signs)
        loss.backward()
        optimizer.step()
        running += loss.item()
    return running / len(loader)


def validate(net, loader, criterion):
    net.eval()
    correct, total, running = 0, 0, 0.0
    for clips, signs in loader:
        clips, signs = clips.cuda(), signs.cuda()
        logits = net(clips)
        running += criterion(logits, signs).item()
        correct += (logits.argmax(dim=1) == signs).sum().item()
        total += len(signs)
    return running / len(loader), correct / total


def main():
    torch.manual_seed(1)
    net = SignNet(CONFIG["classes"]).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=CONFIG["lr"])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    train_loader = DataLoader(Clips(CONFIG["train_clips"], CONFIG, True), CONFIG["batch"], shuffle=True)
    valid_loader = DataLoader(Clips(CONFIG["valid_clips"], CONFIG, False), CONFIG["valid_batch"])
    path = os.path.join(tempfile.mkdtemp(), "history.json")
    history = []
    for epoch in range(CONFIG["epochs"]):
        train_loss = train_epoch(net, train_loader, optimizer, criterion)
        print(f"epoch {epoch} train loss {train_loss:.4f}", flush=True)
        valid_loss, accuracy = validate(net, valid_loader, criterion)
        print(f"epoch {epoch} valid loss {valid_loss:.4f} accuracy {accuracy:.3f}", flush=True)
        history.append({"epoch": epoch, "train": train_loss, "valid": valid_loss, "accuracy": accuracy})
        with open(path, "w") as f:
            json.dump(history, f)


if __name__ == "__main__":
    main()
