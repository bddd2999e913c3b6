"""Makes training chips from labelled satellite scenes: polygons are burnt to class masks, chips are cut and filtered."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Window:
    row: int
    col: int
    size: int

    def slices(self):
        return slice(self.row, self.row + self.size), slice(self.col, self.col + self.size)


@dataclass(frozen=True)
class Feature:
    class_id: int
    box: tuple


class ClassConfig:
    def __init__(self, names):
        self.names = list(names)

    def __len__(self):
        return len(self.names)


class RasterizedSource:
    """Label source that turns the vector features of a scene into a raster of class ids."""

    def __init__(self, features, extent, device):
        self.features = features
        self.extent = extent
        self.device = device
        self.raster = None

    def rasterize(self, window):
        raster = torch.zeros(window.size, window.size, dtype=torch.int64, device=self.device)
        for feature in self.features:
            top, left, bottom, right = feature.box
            top, bottom = max(top - window.row, 0), min(bottom - window.row, window.size)
            left, right = max(left - window.col, 0), min(right - window.col, window.size)
            if top < bottom and left < right:
                raster[top:bottom, left:right] = feature.class_id
        return raster

    def activate(self):
        self.raster = self.rasterize(Window(0, 0, self.extent))

    def get_chip(self, window):
        return self.raster[window.slices()]

    def deactivate(self):
        self.raster = None


class Scene:
    def __init__(self, scene_id, extent, seed, device):
        generator = torch.Generator().manual_seed(seed)
        self.scene_id = scene_id
        self.extent = extent
        corners = torch.randint(extent - 300, (60, 2), generator=generator).tolist()
        features = [Feature(1 + i % 3, (r, c, r + 40 + 3 * i, c + 40 + 2 * i)) for i, (r, c) in enumerate(corners)]
        self.labels = RasterizedSource(features, extent, device)

    def windows(self, size, stride):
        for row in range(0, self.extent - size + 1, stride):
            for col in range(0, self.extent - size + 1, stride):
                yield Window(row, col, size)


class ChipWriter:
    def __init__(self, class_config, min_target):
        self.class_config = class_config
        self.min_target = min_target
        self.kept = {}
        self.weights = torch.zeros(len(class_config))

    def write(self, scene, window, mask):
        target = (mask > 0).float().mean().item()
        if target < self.min_target:
            return False
        onehot = F.one_hot(mask, len(self.class_config)).sum(dim=(0, 1))
        self.weights += onehot.cpu()
        self.kept.setdefault(scene.scene_id, []).append((window, round(target, 3)))
        return True


def chip_scene(scene, writer, size, stride):
    scene.labels.activate()
    count = 0
    for window in scene.windows(size, stride):
        mask = scene.labels.get_chip(window)
        count += writer.write(scene, window, mask)
    scene.labels.deactivate()
    return count


def main():
    classes = ClassConfig(["background", "building", "road", "water"])
    writer = ChipWriter(classes, min_target=0.02)
    for index, extent in enumerate([6_000, 7_000, 9_000, 8_000]):
        scene = Scene(f"vegas_{index}", extent, seed=index, device="cuda")
        count = chip_scene(scene, writer, size=256, stride=48)
        print(f"{scene.scene_id} {extent} px: {count} chips, peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
    print("pixels per class", dict(zip(classes.names, writer.weights.tolist())))


if __name__ == "__main__":
    main()
