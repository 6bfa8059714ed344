"""Figure: matplotlib's figures in one style, and as SVG that takes the text colour of its page, light or dark."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UserError, install

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg", ".pdf")
INK = "#1d1d1f"  # text and axes; in SVG the text colour of the page
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK)  # distinct for the colour-blind


def require_matplotlib(extra: str) -> None:
    """Raise an error, before any work is done, if matplotlib is missing; `extra` is what to install."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError(f"drawing needs matplotlib: {install(extra)}") from None


def check_picture(path: Path) -> None:
    """Refuse a file in which no figure can be saved, before any work is done."""
    require_matplotlib("train")
    if path.suffix.lower() not in PICTURES:
        raise UserError(f"{path} is not a picture: its name must end in {', '.join(PICTURES)}.")
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder.")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}.")


def save_picture(figure: "Figure", path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}.") from None


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


def plain_ticks(axes: Any) -> None:
    """Logarithmic axes labelled 0.1, 0.2, 0.5, 1 rather than by powers of ten that run into each other."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axis.set_minor_formatter(NullFormatter())


def legend(axes: Any, title: str | None = None, *, aside: bool = False) -> None:
    """`aside`: on the right of the axes, where many names would cover what is drawn."""
    place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if aside else {}
    box = axes.legend(frameon=False, fontsize=8, title=title, title_fontsize=8, labelcolor=INK, **place)
    box.get_title().set_color(INK)


def without_formulas(value: Any) -> Any:
    """Plain values whose texts matplotlib shows as they are: a name with two $ is no formula."""
    if isinstance(value, Mapping):
        return {name: without_formulas(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_formulas(inner) for inner in value]
    return value.replace("$", r"\$") if isinstance(value, str) else value


def svg(figure: "Figure") -> str:
    """The figure as an SVG element without a background."""
    picture = io.StringIO()
    figure.savefig(picture, format="svg", transparent=True, metadata={"Date": None})
    text = picture.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")
