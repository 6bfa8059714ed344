"""`unmask` with the toys registered, for torchrun: python train.py train --objective.name toy-objective ..."""

import os
import sys

import toys.backbone
import toys.objective
import toys.recurrent  # noqa: F401
from unmask.cli.main import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as `python -m unmask` ends: threads of torch.distributed can abort a process that shuts down
