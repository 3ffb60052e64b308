"""How often `gradwatch sweep --stop-losers` stops a policy that is as good as the others: a simulation.

The final values of all policies are drawn from one normal distribution, each seed on its own. After every seed from the
second on, a policy is stopped if its 95 % interval lies wholly beyond that of the one with the best mean, as in
`gradwatch/launcher/race.py`. Printed is the share of sweeps in which any is stopped, and in which a given one is.

    python scripts/bench/race_errors.py [--sweeps 20000]
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy import stats

CASES = ((2, 5), (2, 10), (5, 10), (10, 10), (20, 10))  # policies, seeds


def stopped(policies: int, seeds: int, sweeps: int, rng: np.random.Generator) -> np.ndarray:
    """Which policies of which sweeps are stopped before their last seed, `[sweeps, policies]`."""
    values = rng.standard_normal((sweeps, policies, seeds))
    out = np.zeros((sweeps, policies), bool)
    for n in range(2, seeds):
        mean, spread = values[:, :, :n].mean(axis=-1), values[:, :, :n].std(axis=-1, ddof=1)
        half = stats.t.ppf(0.975, n - 1) * spread / np.sqrt(n)
        best = np.where(out, np.inf, mean).argmin(axis=1)
        out |= mean - half > np.take_along_axis(mean + half, best[:, None], axis=1)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=20_000)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    for policies, seeds in CASES:
        found = stopped(policies, seeds, args.sweeps, rng)
        print(f"{policies} policies, {seeds} seeds: any {found.any(axis=1).mean():.1%}, a given one {found.mean():.1%}")


if __name__ == "__main__":
    main()
