"""Place recognition: trains a descriptor with triplets, then scores the whole reference set with local descriptors."""
import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda")


class PlaceNet(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        layers, previous = [], 3
        for stage in (32, 64, 128, width):
            layers += [nn.Conv2d(previous, stage, 3, stride=2, padding=1), nn.BatchNorm2d(stage), nn.ReLU(inplace=True)]
            previous = stage
        self.trunk = nn.Sequential(*layers)
        self.attention = nn.Conv2d(width, 1, 1)

    def forward(self, images):
        local = self.trunk(images)
        weights = F.softplus(self.attention(local))
        pooled = (local * weights).sum(dim=(2, 3)) / (weights.sum(dim=(2, 3)) + 1e-6)
        return F.normalize(pooled, dim=1), F.normalize(local.flatten(2), dim=1)


class RecallAtK:
    """Re-ranks the first candidates with local descriptors."""

    def __init__(self, ks=(1, 5, 10)):
        self.ks = ks
        self.globals, self.locals, self.places = [], [], []

    def update(self, global_descriptor, local_descriptors, places):
        self.globals.append(global_descriptor)
        self.locals.append(local_descriptors)
        self.places.append(places)

    def compute(self):
        descriptors = torch.cat(self.globals)
        places = torch.cat(self.places)
        locals_ = torch.cat(self.locals)
        similarity = descriptors @ descriptors.t()
        candidates = similarity.topk(max(self.ks) + 1).indices[:, 1:].clamp(0, len(places) - 1)
        hits = []
        for query in range(0, len(places), 97):
            chosen = locals_[candidates[query]]
            matches = torch.einsum("dl,cdm->clm", locals_[query], chosen).amax(dim=2).mean(dim=1)
            ranked = candidates[query][matches.argsort(descending=True).clamp(0, len(matches) - 1)]
            hits.append(places[ranked] == places[query])
        hits = torch.stack(hits).float().cpu()
        return {k: hits[:, :k].amax(dim=1).mean().item() for k in self.ks}


def image_batches(count, batch_size, size=(240, 320)):
    template = torch.randint(0, 256, (batch_size, 3, *size), dtype=torch.uint8)
    for number in range(count):
        yield template.roll(number, dims=-1), torch.arange(batch_size) + number // 4


def normalize(images):
    return images.to(DEVICE).float() / 127.5 - 1.0


def train_epoch(model, optimizer):
    for images, _ in image_batches(40, 24):
        anchor, positive, negative = model(normalize(images))[0].chunk(3)
        loss = F.triplet_margin_loss(anchor, positive, negative, margin=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def evaluate(model, batches):
    metric = RecallAtK()
    model.eval()
    for images, places in image_batches(batches, 64):
        global_descriptor, local_descriptors = model(normalize(images))
        metric.update(global_descriptor, local_descriptors, places.to(DEVICE))
    model.train()
    return metric.compute()


def main():
    torch.manual_seed(0)
    model = PlaceNet().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for epoch, references in enumerate((40, 200)):
        loss = train_epoch(model, optimizer)
        print(f"epoch {epoch}: loss {loss:.4f}, peak {torch.cuda.max_memory_allocated() >> 20} MiB")
        recall = evaluate(model, references)
        print(f"epoch {epoch}: recall {recall} on {references * 64} images")


if __name__ == "__main__":
    main()
