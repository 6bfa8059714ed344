"""`unmask` with the toys registered, for processes: main(["train", "--objective.name", "toy-objective"])."""

import toys.backbone
import toys.objective
import toys.recurrent
from unmask.cli.main import main

__all__ = ["main", "toys"]
