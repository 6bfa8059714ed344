"""How long a row will train here, before it does: a few of its steps are timed, or its FLOPs are counted."""

from dataclasses import replace

import torch

from unmask.processes.threads import computing_with
from unmask.studies.plan import steps_of, total_flops, train_of, vocabulary
from unmask.studies.row import StudyRow
from unmask.studies.study import Study
from unmask.text.row import Rows
from unmask.training.estimate import USUAL_SHARE, matrix_rate, step_rate
from unmask.training.settings import Train

LONGEST = 1.0  # seconds of a step that is still tried; of longer ones the FLOPs have to do


class Pace:
    """The seconds of each row's training with the study's threads; what several rows share is timed once."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.timed: dict[str, float] = {}
        with computing_with(study.threads):
            self.rate = matrix_rate()  # FLOPs per second

    def seconds(self, row: StudyRow) -> float:
        settings = train_of(row)
        steps = steps_of(self.study, row) or settings.steps
        flops = total_flops(self.study, row, steps=steps)
        if flops / steps > LONGEST * USUAL_SHARE * self.rate:
            return flops / (USUAL_SHARE * self.rate)
        alike = replace(settings, steps=1000)
        if repr(alike) not in self.timed:
            with computing_with(self.study.threads):
                self.timed[repr(alike)] = try_steps(alike, vocabulary(alike, self.study))
        return flops / (USUAL_SHARE * self.timed[repr(alike)])


def try_steps(settings: Train, vocab: int) -> float:
    """The matrix rate with which the usual share is right, from some steps on random tokens."""
    shape = settings.optim.batch, settings.text.length
    batch = Rows.of(torch.randint(vocab - 1, shape), torch.ones(shape, dtype=torch.bool))
    return step_rate(settings, lambda step: batch, rows=len(batch.tokens), vocab=vocab, mask=vocab - 1)
