"""Fit variable star light curves of a survey, one field after the other."""
import argparse
import sys
import time
import warnings

import numpy as np
import pandas as pd
import torch

from photofit import CurvatureFit, HarmonicModel, survey_fields

warnings.filterwarnings("ignore", category=UserWarning)


def parse(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", default="cuda")
    parser.add_argument("--fields", type=int, default=8)
    parser.add_argument("--stars", type=int, default=384)
    parser.add_argument("--epochs", type=int, default=9000)
    return parser.parse_args(argv)


class Catalogue:
    def __init__(self):
        self.rows = []

    def add(self, name, model, history):
        with torch.no_grad():
            values = torch.cat([model.level, model.drift, model.frequency, model.amplitude.abs()], 1)
        table = np.nan_to_num(values.cpu().numpy())
        for star, row in enumerate(table):
            self.rows.append((f"{name}-{star:04d}", *row[:3], row[3:].max()))
        self.final = float(history[-1])

    def frame(self):
        return pd.DataFrame(self.rows, columns=["star", "level", "drift", "frequency", "amplitude"])


def fit_field(name, times, flux, solver, catalogue, device):
    times, flux = times.to(device), flux.to(device)
    error = flux.std(dim=1, keepdim=True).clamp(min=0.01)
    model = HarmonicModel(flux.size(0), device=device)
    history = solver.run(model, times, flux, error)
    catalogue.add(name, model, history)


def main():
    args = parse(sys.argv[1:])
    torch.manual_seed(6)
    solver = CurvatureFit()
    catalogue = Catalogue()
    for name, times, flux in survey_fields(args.fields, args.stars, args.epochs):
        start = time.time()
        fit_field(name, times, flux, solver, catalogue, args.device)
        print(f"{name}: {flux.size(0)} stars, misfit {catalogue.final:.4f}, {time.time() - start:.2f}s")
    frame = catalogue.frame()
    print(frame.describe().loc[["mean", "std"]].round(3).to_string())
    print(f"{len(frame)} stars in the catalogue")


if __name__ == "__main__":
    main()
