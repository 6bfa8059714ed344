"""UserError: what is wrong, what was seen, what to do."""

import json
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


class UserError(ValueError):
    """A mistake that the user can fix. The command line prints it without a traceback and exits with 2."""


# Names of options that had another name before, and what they are called now.
RENAMED = {
    "towards": "classifier_label",
    "pull": "classifier_weight",
    "exact_pull": "classifier_exact",
    "looks": "passes",
}


def nearest(seen: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant: what an old name became, or one that is spelled nearly so.

    >>> nearest("--pull", ["--prompt", "--classifier-weight"])
    '--classifier-weight'
    """
    names = {name.lstrip("-").replace("-", "_"): name for name in known}
    bare = seen.lstrip("-").replace("-", "_")
    now = RENAMED.get(bare)
    return names[now] if now in names else next((names[name] for name in get_close_matches(bare, names, n=1)), None)


def unknown(kind: str, seen: str, known: Iterable[str], *, hint: str = "") -> UserError:
    """An error for a name that does not exist, with the nearest ones that do; a `hint` comes last.

    >>> str(unknown("schedule", "cosin", ["cosine", "linear"]))
    "no schedule is called 'cosin'. Did you mean 'cosine'? Known: cosine, linear."
    """
    names = sorted(known)
    near = nearest(seen, names)
    guess = f" Did you mean {near!r}?" if near else ""
    return UserError(f"no {kind} is called {seen!r}.{guess} Known: {', '.join(names)}.{hint}")


def how_many(count: int, thing: str) -> str:
    """A number of things in words.

    >>> how_many(1, "forward pass"), how_many(2_000, "forward pass")
    ('1 forward pass', '2,000 forward passes')
    """
    ending = "" if count == 1 else "es" if thing.endswith("s") else "s"
    return f"{count:,} {thing}{ending}"


def install(extra: str) -> str:
    """The command that installs the packages of an extra: from the clone that unmask was installed from, if any."""
    source = source_tree()
    if source is None:
        return f"pip install 'unmask[{extra}]'"
    if source == Path.cwd():
        return f"pip install -c constraints.txt -e '.[{extra}]'"
    return f"pip install -c {source}/constraints.txt -e '{source}[{extra}]'"


def source_tree() -> Path | None:
    """The folder that unmask was installed from; None: it came from a package index."""
    try:
        url = json.loads(distribution("unmask").read_text("direct_url.json") or "{}").get("url", "")
    except (PackageNotFoundError, ValueError):
        url = ""
    known = [Path(url.removeprefix("file://"))] if url.startswith("file://") else []
    for folder in (*known, Path(__file__).resolve().parents[2]):
        if (folder / "pyproject.toml").is_file() and (folder / "constraints.txt").is_file():
            return folder
    return None
