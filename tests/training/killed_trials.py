"""Tuning that kills its process at step 5: main([SETTINGS])."""

import os
import signal

from unmask.settings import read_toml
from unmask.training.trials import TrialLog, open_trials, trials
from unmask.training.tuning import Tuning


def main(arguments: list[str]) -> None:
    asked = read_toml(arguments[0], Tuning())
    with open_trials(asked, print, resume=False) as (fitting, model, data):
        for progress in trials(fitting, model, data, TrialLog()):
            if progress.step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
