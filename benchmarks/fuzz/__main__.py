"""``python -m nncsl.benchmarks.fuzz``."""

import sys

from nncsl.benchmarks.fuzz import main

sys.exit(main())
