"""How many examples Hypothesis tries: by default a few, always the same ones.

FEDSS_TRIES=1000 in the environment tries so many in every test that is told so, and others each time.
"""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import HealthCheck, Phase, settings

ASKED = int(os.environ.get("FEDSS_TRIES") or 0)


def tries(few: int, of_asked: float = 1.0) -> settings:
    """of_asked: the share of FEDSS_TRIES, for a test whose examples take long."""
    return settings(
        max_examples=round(of_asked * ASKED) or few,
        derandomize=not ASKED,
        database=None,
        phases=(Phase.explicit, Phase.generate),  # an example is small as it is, and to make it smaller takes minutes
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def enough(outcomes: Counter[str], few: int) -> bool:
    """Whether so many have run, where each takes seconds; who asks for tries gets all of them."""
    return not ASKED and outcomes["ran"] >= few


def tell(what: str, outcomes: Counter[str]) -> None:
    """Shown by pytest -s, and where a test fails."""
    print(f"\n{what}: {sum(outcomes.values())} tried, {', '.join(f'{n} {how}' for how, n in outcomes.items())}")


def one_line(message: str) -> bool:
    return bool(message.strip()) and len(message.splitlines()) == 1
