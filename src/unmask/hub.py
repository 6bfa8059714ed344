"""The Hugging Face hub: names with a revision, downloads, and the commit that a download has.

A revision (a branch, a tag or a commit) follows a #: `owner/name#v1`. What is fetched without one may be something
else next week, so such a download logs its commit, in the form that fetches it again.
"""

import logging
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from unmask.errors import UserError

REVISION = re.compile(r"[\w.+-]+(/[\w.+-]+)*")
log = logging.getLogger("unmask.hub")  # without a handler of yours, it writes to standard error


def checked_revision(revision: str, text: str) -> str:
    if not REVISION.fullmatch(revision):
        raise UserError(
            f"{text!r} names no revision after its #. A branch, a tag or a commit stands at the end: "
            f"{text.partition('#')[0]}#main."
        )
    return revision


def named_revision(text: str) -> tuple[str, str | None]:
    """The name and the revision of a checkpoint or a tokenizer; owner/name@v1 means the same as owner/name#v1.

    >>> named_revision("kuleshov-group/mdlm-owt#refs/pr/2")
    ('kuleshov-group/mdlm-owt', 'refs/pr/2')
    """
    parts = re.split("[#@]", text, maxsplit=1)
    return parts[0], checked_revision(parts[1], text) if len(parts) == 2 else None


def fetch(text: str, patterns: Sequence[str], *, before: str = "") -> Path:
    """The folder of a repository's files, downloaded or from the cache; `before` is how its name begins for users."""
    from huggingface_hub import snapshot_download

    name, revision = named_revision(text)
    folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    if revision is None:
        announce(before + name, commit_of(folder))
    return folder


@cache
def announce(name: str, commit: str | None) -> None:
    """Say once which commit a name without a revision stands for."""
    if commit is not None:
        log.warning("unmask: %s is at commit %s; write %s#%s to have it again", name, commit[:12], name, commit)


def commit_of(folder: Path) -> str | None:
    """The commit of a folder in the hub's cache (models--owner--name/snapshots/COMMIT); None for any other."""
    inside = folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--")
    return folder.name if inside else None


def hub_origin(folder: Path | None) -> str | None:
    """The repository and commit of a folder in the hub's cache, owner/name#COMMIT; None for any other."""
    commit = None if folder is None else commit_of(folder)
    if folder is None or commit is None:
        return None
    return "/".join(folder.parent.parent.name.split("--")[1:]) + f"#{commit}"
