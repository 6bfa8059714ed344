"""`python -m unmask` is the same as the command `unmask`; torchrun starts it this way."""

import sys

from unmask.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
