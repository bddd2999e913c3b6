import numpy as np
import pandas as pd
import torch


def load_prices(n_days, n_assets, seed):
    rng = np.random.default_rng(seed)
    returns = rng.normal(0, 0.01, (n_days, n_assets)).astype("float32")
    dates = pd.bdate_range("2012-01-02", periods=n_days)
    return pd.DataFrame(returns, index=dates)


class Window:
    """One walk-forward window: returns as inputs, next day's returns as target."""

    def __init__(self, returns, lookback):
        self.returns, self.lookback = returns, lookback
        self.first_day, self.last_day = returns.index[0], returns.index[-1]

    def tensors(self, device):
        values = torch.from_numpy(self.returns.to_numpy())
        features = values.unfold(0, self.lookback, 1)[:-1].transpose(1, 2)
        return features.flatten(1).to(device), values[self.lookback:].to(device)


def windows(returns, train_days, test_days, lookback):
    for start in range(0, len(returns) - train_days - test_days + 1, test_days):
        middle = start + train_days
        yield (Window(returns.iloc[start:middle], lookback),
               Window(returns.iloc[middle - lookback:middle + test_days], lookback))
