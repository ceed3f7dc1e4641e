"""`python -m simnets`, but the second process of a first attempt kills itself at its tenth step."""

import os
import signal
import sys

from simnets.cli import main
from simnets.training import preparation, report

report.files = lambda *args: {"report.html": "nothing"}

if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    original, calls = preparation.after_step, [0]

    def after_step(model, recipe):
        calls[0] += 1
        if calls[0] == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        original(model, recipe)

    preparation.after_step = after_step

sys.exit(main())
