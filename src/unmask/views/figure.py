"""Figure: matplotlib's figures in one style, and as SVG that takes the text colour of its page, light or dark."""

import io
from typing import TYPE_CHECKING, Any

from unmask.errors import UserError, install

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#1d1d1f"  # text and axes; in SVG the text colour of the page
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK)  # distinct for the colour-blind


def require_matplotlib(extra: str) -> None:
    """Raise an error, before any work is done, if matplotlib is missing; `extra` is what to install."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError(f"drawing needs matplotlib: {install(extra)}") from None


def panels(count: int, *, width: float, height: float = 4.5) -> tuple["Figure", Any]:
    """A figure of some axes side by side that share their y axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    row = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    for axes in row:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["bottom", "left"]].set_color(INK)
        axes.tick_params(which="both", color=INK, labelcolor=INK)
        axes.xaxis.label.set_color(INK)
        axes.yaxis.label.set_color(INK)
    return figure, row


def legend(axes: Any, title: str | None = None) -> None:
    box = axes.legend(frameon=False, fontsize=8, title=title, title_fontsize=8, labelcolor=INK)
    box.get_title().set_color(INK)


def svg(figure: "Figure") -> str:
    """The figure as an SVG element without a background."""
    picture = io.StringIO()
    figure.savefig(picture, format="svg", transparent=True, metadata={"Date": None})
    text = picture.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")
