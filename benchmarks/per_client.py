"""The price of weights of one's own: a round of clients against one pass with shared weights over as many pictures.

    python -m benchmarks.per_client [small] [mobilenet] [--rounds N]

Both compute as many pictures at a time; the shared pass takes a step after each. (For TPUs: benchmarks.tpu.)
"""

from __future__ import annotations

import numpy as np

from benchmarks import results
from benchmarks.federation import MOBILENET, SMALL, Encoder, prepare

CASES: dict[str, tuple[Encoder, int, int]] = {  # encoder, clients a round, examples each
    "small": (SMALL, 32, 96),
    "mobilenet": (MOBILENET, 4, 32),
}


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("names", nargs="*", default=list(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    rows, found = [], []
    for name in flags.names:
        encoder, clients, examples = CASES[name]
        sizes = np.full(2 * clients, examples)
        own, lanes, part = prepare(encoder, sizes, clients)
        shared, _, _ = prepare(encoder, sizes, clients, shared=True)
        for _ in range(flags.rounds + 1):
            own.once()
            shared.once()
        price = own.per_example() / shared.per_example()
        found.append(
            {
                "encoder": name,
                "lanes": lanes,
                "part_size": part,
                "price": price,
                "seconds": own.seconds,
                "shared_seconds": shared.seconds,
            }
        )
        rows.append(
            (
                name,
                clients,
                lanes,
                part,
                f"{1e3 * own.per_example():.3f}",
                f"{1e3 * shared.per_example():.3f}",
                f"{price:.2f}",
            )
        )
    print(results.table(("", "clients", "lanes", "part", "own ms/picture", "shared ms/picture", "price"), rows))
    results.save(flags.out, "per_client", found)


if __name__ == "__main__":
    main()
