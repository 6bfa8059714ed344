"""The studies of experiments/ can be imported here; its other files cannot, for some bear the names of our tests."""

import sys
from pathlib import Path

EXPERIMENTS = str(Path(__file__).parents[2] / "experiments")

sys.path.insert(0, EXPERIMENTS)
import studies  # noqa: E402, F401  # found while the folder is on the path, and known by name after it

sys.path.remove(EXPERIMENTS)
