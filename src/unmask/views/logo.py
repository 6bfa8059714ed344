"""Sequence logos: letters as high as their probability times the bits that their position tells."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from unmask.text.tokens.alphabets import unscored_ids
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.views.figure import COLOURS, INK, panels, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASES = {"A": "#009e73", "C": "#0072b2", "G": "#e69f00", "T": "#d55e00"}
LEAST = 0.01  # letters of a smaller share of the height are not drawn


def logo_letters(tokenizer: Tokenizer) -> tuple[list[int], list[str]]:
    """The ids that are single letters, and the letters; N and X stand for any of them and are none."""
    none = tokenizer.specials | set(unscored_ids(tokenizer))
    letters = [(id, piece) for id, piece in enumerate(tokenizer.pieces) if len(piece) == 1 and id not in none]
    return [id for id, _ in letters], [piece for _, piece in letters]


def information(probs: np.ndarray) -> np.ndarray:
    """log2 v − H: the bits that each position tells, for probabilities (l v); 0 for a uniform one."""
    p = probs / probs.sum(1, keepdims=True)
    entropy = -(p * np.log2(np.where(p > 0, p, 1.0))).sum(1)
    return np.log2(p.shape[1]) - entropy


def letter_frequencies(texts: Sequence[str], letters: Sequence[str]) -> np.ndarray:
    """The share of each letter at each position of aligned sequences (l v)."""
    table = np.array([[[letter == one for one in letters] for letter in text] for text in texts], float)
    return table.mean(0)


def logo_figure(probs: np.ndarray, letters: Sequence[str], *, start: int = 1, mark: int | None = None) -> "Figure":
    """A logo of probabilities (l v); positions are counted from `start`, and one of them may be marked."""
    require_matplotlib("train")
    from matplotlib.font_manager import FontProperties
    from matplotlib.patches import PathPatch
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    figure, (axes,) = panels(1, width=max(4.0, 0.3 * len(probs)))
    font = FontProperties(family="DejaVu Sans", weight="bold")
    heights = probs / probs.sum(1, keepdims=True) * information(probs)[:, None]
    for place, column in enumerate(heights):
        bottom = 0.0
        for i in np.argsort(column):
            if column[i] < LEAST * max(heights.max(), 1e-9):
                bottom += column[i]
                continue
            path = TextPath((0, 0), letters[i], size=1, prop=font)
            box = path.get_extents()
            scale = Affine2D().translate(-box.x0, -box.y0).scale(0.9 / box.width, column[i] / box.height)
            drawn = scale.translate(start + place - 0.45, bottom).transform_path(path)
            colour = BASES.get(letters[i], COLOURS[i % len(COLOURS)])
            axes.add_patch(PathPatch(drawn, facecolor=colour, edgecolor="none"))
            bottom += column[i]
    if mark is not None:
        axes.axvspan(mark - 0.5, mark + 0.5, color=INK, alpha=0.08, lw=0)
    axes.set(xlim=(start - 0.6, start + len(probs) - 0.4), ylim=(0, max(float(heights.sum(1).max()) * 1.05, 0.05)))
    axes.set(xlabel="position", ylabel="bits")
    axes.ticklabel_format(axis="x", useOffset=False, style="plain")
    return figure
