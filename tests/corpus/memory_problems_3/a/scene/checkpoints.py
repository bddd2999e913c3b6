import os

import torch


class CheckpointStore:
    def __init__(self, folder, device):
        self.path = os.path.join(folder, "last.pt")
        self.device = device

    def save(self, epoch, model, ema, optimizer):
        torch.save(
            {
                "epoch": epoch,
                "state_dict": model.state_dict(),
                "state_dict_ema": ema.state_dict(),
                "optimizer": optimizer.state_dict(),
            },
            self.path,
        )

    def restore(self, model, ema, optimizer):
        checkpoint = torch.load(self.path, map_location=self.device, weights_only=True)
        model.load_state_dict(checkpoint["state_dict"])
        ema.load_state_dict(checkpoint["state_dict_ema"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        return checkpoint
