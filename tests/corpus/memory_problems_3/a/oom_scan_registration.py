# Iterative closest point for laser scans: every scan is aligned to the map of its site.
import random

import torch

DEVICE = "cuda"
SITES = {"courtyard": 12_000, "hall": 18_000, "staircase": 9_000, "facade": 30_000, "campus": 64_000, "garden": 15_000}
ITERATIONS = 6

torch.manual_seed(2)
random.seed(2)


def read_scan(points):
    cloud = torch.rand(points, 3) * torch.tensor([40.0, 40.0, 6.0])
    return cloud.to(DEVICE)


def voxel_downsample(cloud, keep):
    step = max(1, len(cloud) // keep)
    return cloud[::step].contiguous()


def nearest_neighbours(source, target):
    distances = torch.cdist(source, target)
    nearest = distances.min(dim=1)
    return nearest.values, nearest.indices.clamp(0, len(target) - 1)


def fit_rigid(source, target, weights):
    total = weights.sum() + 1e-6
    center_source = (weights[:, None] * source).sum(0) / total
    center_target = (weights[:, None] * target).sum(0) / total
    covariance = (source - center_source).t() @ (weights[:, None] * (target - center_target))
    u, _, vt = torch.linalg.svd(covariance.cpu().nan_to_num() + torch.eye(3))
    rotation = (vt.t() @ u.t()).to(source.device)
    return rotation, center_target - rotation @ center_source


def align(scan, site_map):
    pose = torch.eye(4, device=scan.device)
    for iteration in range(ITERATIONS):
        distance, index = nearest_neighbours(scan, site_map)
        weights = (distance < 1.0 / (iteration + 1)).float()
        rotation, translation = fit_rigid(scan, site_map[index], weights)
        scan = scan @ rotation.t() + translation
        step = torch.eye(4, device=scan.device)
        step[:3, :3], step[:3, 3] = rotation, translation
        pose = step @ pose
    return pose, distance.mean().item()


results = {}
for site, size in SITES.items():
    site_map = read_scan(size)
    for number in range(40):
        scan = voxel_downsample(read_scan(int(size * random.uniform(0.6, 0.9))), keep=50_000)
        pose, error = align(scan, site_map)
        results[site, number] = pose.cpu()
    peak = torch.cuda.max_memory_allocated() / 2**20
    print(f"{site}: map of {size} points, last error {error:.3f}, peak {peak:.0f} MiB")
    torch.cuda.reset_peak_memory_stats()

print(len(results), "poses")
