"""The bar of a training run."""

from io import StringIO

from rich.console import Console

from unmask.cli.train import LiveBar


def test_the_bar_shows_step_and_time_left_after_every_step():
    text = StringIO()
    bar = LiveBar(Console(file=text, force_terminal=True, width=100))
    bar.tick(3, 40, "mdlm", "5 s left")
    bar.close()
    assert "3/40" in text.getvalue()
    assert "5 s left" in text.getvalue()
