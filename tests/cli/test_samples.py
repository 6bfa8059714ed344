"""Drawing samples to be judged shows how far it is."""

from tiny import checkpoint
from unmask.cli.samples import drawn_texts
from unmask.model.checkpoint import load
from unmask.sampling.recipe import Recipe


def test_a_terminal_shows_how_many_samples_are_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes standard error for a terminal
    texts, _ = drawn_texts(load(checkpoint(tmp_path / "model")), Recipe(), n=3, length=4)
    assert len(texts) == 3
    assert "drawn 3 of 3 samples" in capsys.readouterr().err
