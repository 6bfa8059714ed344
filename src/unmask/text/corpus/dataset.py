"""A data set on the hub: `hf:NAME:CONFIG@SPLIT#REVISION`, streamed. Everything after NAME may be left out.

A split may be a range of rows: `@train[:1000]`, `@train[7913769:]`. Data sets that were scripts can no longer be run;
the hub keeps their tables in the revision `refs/convert/parquet`, one folder CONFIG/SPLIT each.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.hub import announce, checked_revision
from unmask.text.corpus.decompress import needs

PARQUET = "refs/convert/parquet"
COMMIT = re.compile("[0-9a-f]{40}")
SPLIT = re.compile(r"([\w.-]+)(?:\[([0-9]*):([0-9]*)\])?")


class Unreadable(UserError):
    """The hub cannot be reached, or has no such data set."""


@dataclass(frozen=True)
class DataSet:
    """The name of a data set, taken apart."""

    repository: str  # owner/name, or a folder that `datasets` reads
    config: str | None = None
    split: str = "train"
    revision: str | None = None

    def __post_init__(self) -> None:
        if not SPLIT.fullmatch(self.split):
            raise UserError(
                f"{self.split!r} is not a split: write hf:{self.repository}@train, or @train[:1000] for some rows."
            )

    @property
    def name(self) -> str:
        """How users write it."""
        config = f":{self.config}" if self.config else ""
        revision = f"#{self.revision}" if self.revision else ""
        return f"hf:{self.repository}{config}@{self.split}{revision}"

    @property
    def local(self) -> bool:
        return Path(self.repository).exists()

    @property
    def _commit(self) -> str | None:
        return self.revision if self.revision and COMMIT.fullmatch(self.revision) else None

    def pinned(self) -> "DataSet":
        """The data set at the commit that its revision stands for; without a revision the commit is logged."""
        if self.local or self._commit:
            return self
        info = self._info()
        if self.revision is None:
            announce(self.name, info.sha)
        return replace(self, revision=info.sha)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, streamed."""
        datasets = needs("datasets", f"the data set {self.name!r}")
        split, first, last = SPLIT.fullmatch(self.split).groups()  # type: ignore[union-attr]
        tables = [] if self.local else self._tables(split)
        with_tables = {"path": "parquet", "data_files": {split: tables}}
        by_name = {"path": self.repository, "name": self.config, "revision": None if self.local else self.revision}
        try:
            rows = datasets.load_dataset(**(with_tables if tables else by_name), split=split, streaming=True)
            yield from islice(rows.skip(int(first or 0)), int(last) - int(first or 0) if last else None)
        except UserError:
            raise
        except Exception as error:  # no such set, config or split, no network: the hub's message says which
            raise self._unreadable(error) from None

    def sha256(self) -> str:
        """The hash of the name and the commit."""
        if not self.local:
            commit = self._commit or self._info().sha
        else:
            datasets = needs("datasets", f"the data set {self.name!r}")
            try:
                commit = datasets.load_dataset_builder(self.repository, self.config).hash
            except Exception as error:
                raise self._unreadable(error) from None
        return hashlib.sha256(f"{self.repository} {self.config} {self.split} {commit}".encode()).hexdigest()

    def _tables(self, split: str) -> list[str]:
        """The addresses of the tables CONFIG/SPLIT/*.parquet, if the revision has them."""
        info, wanted = self._info(), f"{self.config or 'default'}/{split}/*.parquet"
        names = sorted(one.rfilename for one in info.siblings or [] if fnmatch(one.rfilename, wanted))
        return [f"hf://datasets/{self.repository}@{info.sha}/{name}" for name in names]

    def _info(self) -> Any:
        from huggingface_hub import HfApi

        try:
            return HfApi().dataset_info(self.repository, revision=self.revision)
        except Exception as error:  # no such repository or revision, no network, no permission
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> Unreadable:
        why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        return Unreadable(f"cannot read the data set {self.name!r} from the hub: {why}.")


def parse_data_set(name: str) -> DataSet:
    """The data set of a name such as `hf:Salesforce/wikitext:wikitext-2-raw-v1@test#main`."""
    rest, mark, revision = name.removeprefix("hf:").partition("#")
    rest, _, split = rest.partition("@")
    repository, _, config = rest.partition(":")
    if not repository:
        raise UserError(f"{name!r} names no data set: write hf:NAME, such as hf:roneneldan/TinyStories.")
    return DataSet(repository, config or None, split or "train", checked_revision(revision, name) if mark else None)
