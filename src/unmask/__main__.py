"""`python -m unmask` is the same as the command `unmask`; torchrun uses it."""

import os
import sys
from contextlib import suppress

from unmask.cli.main import main

if __name__ == "__main__":
    code = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # Threads of torch.distributed can abort a process that has finished and is shutting down.
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
