import torch
import torch.nn.functional as F

from radiance import RadianceField, camera_rays, pose_spherical, volume_render


class RayDataset:
    """Views around the object; a split gives (rays, target) of one image at a time."""

    def __init__(self, height, width, focal, views):
        self.height, self.width, self.focal = height, width, focal
        self.poses = [pose_spherical(360 * i / views, -30, 4.0) for i in range(views)]

    def image(self, index):
        rays = camera_rays(self.poses[index], self.height, self.width, self.focal, "cuda")
        target = torch.rand(self.height * self.width, 3, generator=torch.Generator().manual_seed(index))
        return rays, target

    def random_rays(self, count):
        rays, target = self.image(int(torch.randint(len(self.poses), ())))
        rows = torch.randint(len(rays), (count,))
        return rays[rows.to(rays.device)], target[rows].cuda()


class LitNeRF:
    near, far, samples, chunk = 2.0, 6.0, 48, 8192

    def __init__(self):
        self.model = RadianceField().cuda()

    def training_step(self, rays, target):
        rgb, _ = volume_render(self.model, rays, self.near, self.far, self.samples)
        return F.mse_loss(rgb, target)

    def render_rays(self, rays, target):
        rgbs, depths = [], []
        for part in rays.split(self.chunk):
            rgb, depth = volume_render(self.model, part, self.near, self.far, self.samples)
            rgbs.append(rgb)
            depths.append(depth)
        return {"target": target.to(rays.device), "rgb": torch.cat(rgbs), "depth": torch.cat(depths)}

    def test_step(self, batch):
        rays, target = batch
        return self.render_rays(rays, target)

    def test_epoch_end(self, outputs, shape):
        images = [output["rgb"].view(*shape, 3) for output in outputs]
        targets = [output["target"].view(*shape, 3) for output in outputs]
        psnr = [-10 * torch.log10(F.mse_loss(a, b)).item() for a, b in zip(images, targets)]
        worst = min(range(len(psnr)), key=psnr.__getitem__)
        return {"psnr": sum(psnr) / len(psnr), "worst view": worst, "images": [image.mul(255).byte().cpu() for image in images]}


class Trainer:
    def __init__(self, max_steps, batch_rays):
        self.max_steps, self.batch_rays = max_steps, batch_rays

    def fit(self, lit, dataset):
        optimizer = torch.optim.Adam(lit.model.parameters(), lr=5e-4)
        for step in range(self.max_steps):
            loss = lit.training_step(*dataset.random_rays(self.batch_rays))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f} peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")

    def test(self, lit, dataset):
        lit.model.eval()
        with torch.no_grad():
            outputs = []
            for index in range(len(dataset.poses)):
                outputs.append(lit.test_step(dataset.image(index)))
            return lit.test_epoch_end(outputs, (dataset.height, dataset.width))


def run():
    lit = LitNeRF()
    trainer = Trainer(max_steps=40, batch_rays=1024)
    trainer.fit(lit, RayDataset(200, 200, 280.0, views=20))
    result = trainer.test(lit, RayDataset(800, 800, 1111.0, views=40))
    print(f"psnr {result['psnr']:.2f}, worst view {result['worst view']}, {len(result['images'])} images, "
          f"peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    run()
