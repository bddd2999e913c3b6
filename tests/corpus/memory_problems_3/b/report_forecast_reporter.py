# %% [markdown]
# # Traffic forecasting: 862 sensors, one week in, two days out

# %%
import collections
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda")
torch.manual_seed(11)

# %%
SENSORS, LOOKBACK, HORIZON, BATCH = 862, 168, 48, 128
LOG_EVERY, STEPS = 30, 90


class MovingAverage(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.pool = nn.AvgPool1d(kernel, stride=1, padding=kernel // 2, count_include_pad=False)

    def forward(self, x):
        return self.pool(x)


class DecompositionLinear(nn.Module):
    """Trend and season are extrapolated by one linear map each, shared by the sensors."""

    def __init__(self, lookback, horizon, kernel=25):
        super().__init__()
        self.average = MovingAverage(kernel)
        self.trend = nn.Linear(lookback, horizon)
        self.season = nn.Linear(lookback, horizon)

    def forward(self, x):
        trend = self.average(x)
        return self.trend(trend) + self.season(x - trend)


# %%
class Summary:
    def __init__(self):
        self.total = 0.0
        self.square = 0.0
        self.count = 0

    def add(self, value):
        self.total = self.total + value
        self.square = self.square + value * value
        self.count += 1

    def mean(self):
        mean = self.total / self.count
        return mean.item() if torch.is_tensor(mean) else mean


class Reporter:
    """Collects what training code reports under names; observers read it at the end of an interval."""

    def __init__(self):
        self.observation = {}

    def report(self, values, prefix=""):
        for name, value in values.items():
            if torch.is_tensor(value):
                value = value.clone()
            self.observation[prefix + name] = value


class LogReport:
    def __init__(self, interval):
        self.interval = interval
        self.rows = []
        self.reset()

    def reset(self):
        self.summaries = collections.defaultdict(Summary)

    def __call__(self, step, observation):
        for name, value in observation.items():
            self.summaries[name].add(value)
        if step % self.interval == 0:
            row = {name: summary.mean() for name, summary in self.summaries.items()}
            row["step"] = step
            self.rows.append(row)
            self.reset()
            print("  ".join(f"{k}={v:.4g}" for k, v in row.items()))


# %%
def smape(forecast, actual):
    return (2 * (forecast - actual).abs() / (forecast.abs() + actual.abs()).clamp(min=1e-3)).mean()


def windows(steps):
    occupancy = torch.rand(SENSORS, 4 * 7 * 24 * 10)
    length = LOOKBACK + HORIZON
    for _ in range(steps):
        begins = torch.randint(occupancy.shape[1] - length, (BATCH,)).tolist()
        series = torch.stack([occupancy[:, b:b + length] for b in begins]).to(device)
        yield series[..., :LOOKBACK], series[..., LOOKBACK:]


# %%
model = DecompositionLinear(LOOKBACK, HORIZON).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
reporter, log = Reporter(), LogReport(LOG_EVERY)
durations = []

for step, (past, future) in enumerate(windows(STEPS), start=1):
    tic = time.perf_counter()
    forecast = model(past)
    loss = F.smooth_l1_loss(forecast, future)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    reporter.report({"loss": loss, "smape": smape(forecast, future), "lr": 2e-3}, prefix="train/")
    log(step, reporter.observation)
    durations.append(time.perf_counter() - tic)

# %%
print(f"median step {1e3 * statistics.median(durations):.1f} ms")
print(f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated, "
      f"{torch.cuda.max_memory_allocated() / 2**20:.0f} MiB at most")
