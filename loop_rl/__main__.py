"""`python -m loop_rl` is `loop-rl`; launchers such as torchrun start a module so."""

import sys

from loop_rl.cli import main

if __name__ == "__main__":
    sys.exit(main())
