"""``python -m nncsl`` is ``nncsl``: for torchrun, and where the command is not on the path."""

import sys

from nncsl.cli import main

if __name__ == "__main__":
    sys.exit(main())
