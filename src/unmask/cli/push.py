"""Publish a checkpoint on the hub, with a model card.

--to uploads it, with the account of `hf auth login`; --folder writes what would be uploaded, to be looked at, given
to somebody or published later. The card (README.md) has parameters, objective, settings and the validation bound; a
card that the checkpoint or the repository has already is kept. --transformers also writes modeling_unmask.py, with
which transformers reads the network (trust_remote_code) where unmask is not installed.

    unmask push runs/mine --to me/my-model --private
    unmask push runs/mine --folder my-model/ --license mit
    unmask push my-model/ --to me/my-model
"""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import tyro

from unmask.errors import UserError
from unmask.files import write_json, write_whole
from unmask.model.card import CARD, Bound, card_of, without_paths
from unmask.model.checkpoint import load
from unmask.model.convert import convert
from unmask.model.exported import check_exported, write_code
from unmask.model.format import NOTE
from unmask.model.head_files import HEAD, is_predictor
from unmask.model.head_files import NOTE as PREDICTOR_NOTE
from unmask.model.model import Model
from unmask.training.note import read_point
from unmask.untrusted import check_links, read_object

ALONG = (CARD, "NOTICE", "LICENSE", "LICENSE.txt")  # files beside the model that are published with it
# Files that may name folders of the machine they were written on, with the entries that may.
RECORDS: dict[str, Callable[[str], bool]] = {
    NOTE: lambda entry: entry == "settings",
    PREDICTOR_NOTE: lambda entry: entry != "answer",
    "config.json": lambda entry: entry.endswith("name_or_path"),
    "tokenizer_config.json": lambda entry: entry.endswith("name_or_path"),
}


@dataclass(frozen=True)
class Settings:
    checkpoint: Annotated[str, tyro.conf.Positional]  # the folder of a checkpoint or of a run
    to: str = ""  # repository on the hub: owner/name
    private: bool = False  # create it for yourself and your team only
    folder: Path | None = None  # folder to write, which must not exist yet
    transformers: bool = False  # also write a file of code, for transformers without unmask
    license: str = ""  # licence of the weights for the card, such as mit or apache-2.0


def run(settings: Settings) -> None:
    if not settings.to and settings.folder is None:
        raise UserError("where should it go? Give --to OWNER/NAME, or --folder FOLDER to publish it later.")
    if settings.to and not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", settings.to):
        raise UserError(f"a repository on the hub is written owner/name, not {settings.to!r}.")
    with TemporaryDirectory(prefix="unmask-") as aside:
        folder = settings.folder or Path(aside) / "model"
        own_card = write_folder(settings, folder)
        if settings.folder is not None:
            print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
        if not settings.to:
            print(f"publish it later with: unmask push {folder} --to OWNER/NAME")
            return
        try:
            commit = upload(folder, settings.to, private=settings.private, own_card=own_card)
        except Exception as error:  # no network, no login, no permission: the hub's message says which
            raise unpublished_error(settings, folder, error) from None
    print(f'published: unmask.load("{settings.to}#{commit}")')


def write_folder(settings: Settings, folder: Path) -> bool:
    """Write everything that is published; whether the card is the checkpoint's own."""
    name = settings.to or folder.name
    source = load(settings.checkpoint)
    assert source.folder is not None
    if settings.license and (source.folder / CARD).is_file():
        raise UserError(f"{source.folder} has a card of its own, which is kept: write the licence into its {CARD}.")
    check_links(source.folder, ALONG)
    if settings.transformers:
        check_exported(source)
    bound = validation_bound(source)
    card = card_of(source, name, license=settings.license, bound=bound, transformers=settings.transformers)
    convert(settings.checkpoint, folder)
    for file in (*ALONG, *((HEAD, PREDICTOR_NOTE) if is_predictor(source.folder) else ())):
        if (source.folder / file).is_file():
            shutil.copyfile(source.folder / file, folder / file)
    for file, holds_path in RECORDS.items():
        if (folder / file).is_file():
            note = read_object(folder / file)
            write_json(folder / file, {**note, **without_paths({k: v for k, v in note.items() if holds_path(k)})})
    if settings.transformers:
        write_code(folder)
    if (folder / CARD).is_file():
        return True
    write_whole(folder / CARD, card)
    return False


def validation_bound(model: Model) -> Bound | None:
    """The bound of the model on the held-out rows of its run, if it was measured there."""
    assert model.folder is not None
    try:
        point = read_point(model.folder)
    except UserError:  # not a checkpoint of a run, or not one that can be resumed: it has weights all the same
        return None
    return Bound(point.best, point.error) if point.best is not None and point.best_step == model.step else None


def upload(folder: Path, repository: str, *, private: bool, own_card: bool) -> str:
    """Publish a folder; the commit. A card on the hub gives way only to the checkpoint's own."""
    from huggingface_hub import HfApi

    hub = HfApi(library_name="unmask")
    hub.create_repo(repository, private=private or None, exist_ok=True)
    untouched = [] if own_card or not hub.file_exists(repository, CARD) else [CARD]
    commit = hub.upload_folder(
        repo_id=repository, folder_path=folder, ignore_patterns=untouched, commit_message="Publish with unmask push"
    )
    return str(commit.oid)


def unpublished_error(settings: Settings, folder: Path, error: Exception) -> UserError:
    """The error after which the folder is still there, to be published later."""
    if settings.folder is None:
        target = Path(settings.to.replace("/", "--"))
        if not target.exists():
            shutil.copytree(folder, target)
        folder = target
    why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    private = " --private" if settings.private else ""
    return UserError(
        f"could not publish {settings.to}: {why}. What would be published is in {folder}: read its {CARD}, then run "
        f"`unmask push {folder} --to {settings.to}{private}` when the hub can be reached and `hf auth login` is done."
    )
