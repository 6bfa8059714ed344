"""The studies of bench/ can be imported here; its other files cannot, for some bear the names of our tests."""

import sys
from pathlib import Path

BENCH = str(Path(__file__).parents[2] / "bench")

sys.path.insert(0, BENCH)
import studies  # noqa: E402, F401

sys.path.remove(BENCH)
