"""Clients of very unequal size on packed lanes, against a cohort of equal clients with as many examples.

    python -m benchmarks.ragged [--rounds N]

Sizes are log-normal with a mean of 130, from 30 to 2,000, as in Landmarks-User-160k; 64 of 1,262 clients a round. Time
is per example. "Padded" is what padding every client to the longest of the population would compute.
"""

from __future__ import annotations

import numpy as np

from benchmarks import results
from benchmarks.federation import SMALL, prepare

CLIENTS, PER_ROUND, MEAN, LEAST, MOST = 1262, 64, 130, 30, 2000


def ragged_sizes() -> np.ndarray:
    drawn = np.random.default_rng(0).lognormal(0.0, 1.0, CLIENTS)
    return np.clip(drawn / drawn.mean() * MEAN, LEAST, MOST).astype(np.int64)


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    flags = parser.parse_args()
    ragged = ragged_sizes()
    equal = np.full(CLIENTS, round(ragged.mean()))
    rows, found = [], []
    for part_size in (32, 16, 0):
        made = {
            name: prepare(SMALL, sizes, PER_ROUND, part_size=part_size) for name, sizes in (("r", ragged), ("e", equal))
        }
        (packed, lanes, part), (even, even_lanes, even_part) = made["r"], made["e"]
        for _ in range(flags.rounds + 1):
            packed.once()
            even.once()
        ratio = packed.per_example() / even.per_example()
        found.append(
            {
                "chosen": part_size == 0,
                "part_size": part,
                "lanes": lanes,
                "real_share": packed.real_share(),
                "equal": {"part_size": even_part, "lanes": even_lanes, "real_share": even.real_share()},
                "time_ratio": ratio,
                "microseconds_an_example": 1e6 * packed.per_example(),
                "equal_microseconds_an_example": 1e6 * even.per_example(),
            }
        )
        chosen = "as chosen" if part_size == 0 else ""
        rows.append(
            (
                f"parts of {part} {chosen}".strip(),
                lanes,
                f"{packed.real_share():.1%}",
                f"{even.real_share():.1%}",
                f"{1e6 * packed.per_example():.0f}",
                f"{ratio:.2f}",
            )
        )
    padded = ragged.mean() / ragged.max()
    print(f"sizes {ragged.min()} to {ragged.max()}, mean {ragged.mean():.0f}; padded: {padded:.1%} real slots")
    print(results.table(("", "lanes", "real slots", "equal clients'", "us an example", "time against equal"), rows))
    results.save(flags.out, "ragged", found)


if __name__ == "__main__":
    main()
