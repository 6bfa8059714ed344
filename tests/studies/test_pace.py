"""The time of a training, before it runs."""

import pytest
import torch
from tiny_study import written

from unmask.studies import pace
from unmask.studies.pace import Pace
from unmask.studies.plan import total_flops
from unmask.studies.study import read_study
from unmask.training.estimate import USUAL_SHARE, step_rate


def test_rows_of_one_network_are_timed_once_and_four_times_the_steps_take_four_times_as_long(tmp_path, monkeypatch):
    timed = []

    def counted(settings, batch, **more):
        assert torch.get_num_threads() == 1
        timed.append(settings.model.width)
        return step_rate(settings, batch, **more)

    monkeypatch.setattr(pace, "step_rate", counted)
    threads = torch.get_num_threads()
    rows = [{"name": "{steps}, {model.width}", "over": {"steps": [20, 80], "model.width": [16, 32]}}]
    study = read_study(written(tmp_path, row=rows))
    guess = Pace(study)
    short, wide, long, _ = (guess.seconds(row) for row in study.rows)
    assert timed == [16, 32]
    assert long == pytest.approx(4 * short)
    assert short > 0
    assert wide > 0
    assert torch.get_num_threads() == threads


def test_a_network_whose_step_takes_long_is_not_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "LONGEST", 0.0)
    monkeypatch.setattr(pace, "step_rate", lambda *_, **__: pytest.fail("it was tried"))
    study = read_study(written(tmp_path))
    guess = Pace(study)
    row = study.rows[0]
    assert guess.seconds(row) == pytest.approx(total_flops(study, row) / (USUAL_SHARE * guess.rate))
