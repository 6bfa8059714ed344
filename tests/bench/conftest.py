"""The studies are scripts beside the package: their folder must be found."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
