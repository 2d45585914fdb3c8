"""`python -m mjtorch`: the command line, as `torchrun -m mjtorch` starts it, too."""

import sys

from mjtorch.cli import main

sys.exit(main())
