"""`python -m loop_rl` is `loop-rl`; launchers such as torchrun start a module so."""

import os
import signal
import sys

# Until there is something to tidy up, and when all has been, Ctrl-C ends the process with no traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# -m puts the current folder first, where a user's rewards.py would stand before the package rewards.
if sys.path and sys.path[0] in ("", os.getcwd()):
    sys.path.append(sys.path.pop(0))

from loop_rl.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
