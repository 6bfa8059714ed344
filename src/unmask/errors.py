"""UserError: what is wrong, what was seen, what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake that the user can fix. The command line prints it without a traceback and exits with 2."""


def unknown(kind: str, seen: str, known: Iterable[str]) -> UserError:
    """An error for a name that does not exist, with the nearest ones that do.

    >>> str(unknown("schedule", "cosin", ["cosine", "linear"]))
    "no schedule is called 'cosin'. Did you mean 'cosine'? Known: cosine, linear."
    """
    names = sorted(known)
    near = get_close_matches(seen, names, n=1)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return UserError(f"no {kind} is called {seen!r}.{guess} Known: {', '.join(names)}.")
