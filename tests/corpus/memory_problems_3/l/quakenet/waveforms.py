import numpy as np
import torch


class StationArchive:
    """Synthetic three-component records with one P and one S arrival each."""

    def __init__(self, n_events, window, seed):
        self.n_events = n_events
        self.window = window
        self.rng = np.random.default_rng(seed)

    def _record(self):
        noise = self.rng.standard_normal((3, self.window)).astype(np.float32) * 0.1
        p_at = int(self.rng.integers(self.window // 8, self.window // 3))
        s_at = p_at + int(self.rng.integers(self.window // 10, self.window // 4))
        t = np.arange(self.window, dtype=np.float32)
        for onset, freq, comp in ((p_at, 0.21, 0), (s_at, 0.08, 1)):
            envelope = np.where(t >= onset, np.exp(-(t - onset) / 600.0), 0.0)
            noise[comp] += (envelope * np.sin(freq * (t - onset))).astype(np.float32)
        label = np.zeros((3, self.window), dtype=np.float32)
        for row, onset in ((0, p_at), (1, s_at)):
            label[row] = np.exp(-0.5 * ((t - onset) / 20.0) ** 2)
        label[2] = np.clip(1.0 - label[0] - label[1], 0.0, 1.0)
        return noise, label

    def batches(self, size):
        for start in range(0, self.n_events, size):
            items = [self._record() for _ in range(min(size, self.n_events - start))]
            waves = torch.from_numpy(np.stack([w for w, _ in items]))
            labels = torch.from_numpy(np.stack([l for _, l in items]))
            yield waves, labels
