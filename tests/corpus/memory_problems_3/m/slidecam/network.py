from torch import nn


class Unit(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.skip = nn.Conv2d(c_in, c_out, 1, stride=stride, bias=False)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.act(self.bn1(self.conv1(x)))
        return self.act(self.bn2(self.conv2(y)) + self.skip(x))


class TumorNet(nn.Module):
    def __init__(self, n_classes=5, width=48):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 5, stride=2, padding=2), nn.ReLU(inplace=True))
        self.stage1 = Unit(width, 2 * width, 2)
        self.stage2 = Unit(2 * width, 4 * width, 1)
        self.stage3 = Unit(4 * width, 8 * width, 2)
        self.fc = nn.Linear(8 * width, n_classes)

    def forward(self, x):
        x = self.stage3(self.stage2(self.stage1(self.stem(x))))
        return self.fc(x.mean((2, 3)))
