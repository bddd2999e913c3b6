import torch.nn as nn


class LineReader(nn.Module):
    def __init__(self, alphabet=90, width=192):
        super().__init__()
        def stage(a, b, pool):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(pool))
        self.features = nn.Sequential(stage(1, 32, 2), stage(32, 64, 2), stage(64, 128, (2, 1)), stage(128, width, (2, 1)))
        self.context = nn.LSTM(width * 6, 256, num_layers=2, bidirectional=True, batch_first=True)
        self.classify = nn.Linear(512, alphabet + 1)

    def steps(self, widths):
        return widths // 4

    def forward(self, images):
        x = self.features(images)
        x = x.permute(0, 3, 1, 2).flatten(2)
        x, _ = self.context(x)
        return self.classify(x).log_softmax(-1)
