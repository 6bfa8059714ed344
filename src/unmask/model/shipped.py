"""Models that come with the package: each has a name and a folder, with a card that says what it is and can do."""

from pathlib import Path

import unmask

HOME = Path(unmask.__file__).parent / "shipped"


def shipped(home: Path = HOME) -> dict[str, Path]:
    """The checkpoints in the package by name."""
    return {config.parent.name: config.parent for config in sorted(home.glob("*/config.json"))}
