"""`python -m unmask` is the same as the command `unmask`; torchrun starts it this way."""

import os
import sys
from contextlib import suppress

from unmask.cli.main import main

if __name__ == "__main__":
    code = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # Threads of torch.distributed can abort a process that has done its work and is only shutting down.
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
