class Smoothed:
    """Exponentially smoothed reading with bias correction."""

    def __init__(self, keep=0.98):
        self.keep = keep
        self.value, self.mass = 0.0, 0.0

    def update(self, reading):
        self.value = self.keep * self.value + (1 - self.keep) * reading
        self.mass = self.keep * self.mass + (1 - self.keep)

    def read(self):
        return self.value.item() / max(self.mass, 1e-8)


class Board:
    def __init__(self, *names):
        self.readings = {name: Smoothed() for name in names}

    def log(self, **values):
        for name, value in values.items():
            self.readings[name].update(value)

    def line(self):
        return "  ".join(f"{name} {reading.read():.4f}" for name, reading in self.readings.items())
