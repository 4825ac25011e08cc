"""Makes ``python -m nncsl`` the ``nncsl`` command: launchers such as ``torchrun -m`` take modules, not scripts."""

import sys

from nncsl.cli import main

if __name__ == "__main__":
    sys.exit(main())
