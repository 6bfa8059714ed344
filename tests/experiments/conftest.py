"""The studies of experiments/ can be imported here; its other files cannot, for some bear the names of our tests."""

import sys
from pathlib import Path

EXPERIMENTS = str(Path(__file__).parents[2] / "experiments")

sys.path.insert(0, EXPERIMENTS)
import studies  # noqa: E402, F401

sys.path.remove(EXPERIMENTS)
