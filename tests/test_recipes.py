"""The recipes of docs/recipes run from top to bottom, shell and Python, on tiny data and in few steps."""

import contextlib
import csv
import importlib.util
import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from test_readme import ROOT, SMALL, arguments_of, blocks, check_is_read, commands, needs
from unmask.cli.main import main

PAGES = sorted(page for page in ROOT.glob("docs/recipes/*.md") if page.name != "index.md")
TUNED = "--steps 2 --optim.batch 2 --run.eval-rows 2 --run.preview 0"  # sizes that are the checkpoint's stay
ROW = "--text.length 64"  # tokens: a description with its blanks
SMALLER = {
    'row["description"], top_p=0.7': 'row["description"], top_p=0.7, passes=2, tries=2',
}
VERSE = "ROMEO:\nWhat light through yonder window breaks?\n\n"
BASES = "ACGTTGCAATGCCGTAGGCTAACGTTAGCCATGACGTATCGGATCCATGCAAGTCTAGGCATCTACG\n"


def products(folder: Path) -> None:
    line = "name : The Mill | area : city centre||The Mill number {} is a cheap £ 5 pub , near Cotto .\n"
    (folder / "e2e.txt").write_text("".join(line.format(i) for i in range(200)), encoding="utf-8")


def molecules(folder: Path) -> None:
    texts = ("CCO", "C1CC1O", "CC(C)=O", "OCC=O", "CCCCN", "C#CC", "O=C1CC1")
    (folder / "qm9.csv").write_text("idx,smiles\n" + "".join(f"{i},{texts[i % 7]}\n" for i in range(300)))


def dna(folder: Path) -> None:
    (folder / "ecoli.fna").write_text(">a genome\n" + BASES * 60)


def proteins(folder: Path) -> None:
    record = ">sp|P{}|A\nMKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVKALPDAQFEVVHSLAKWKRQTLGQHDF\n"
    (folder / "proteins.fasta").write_text("".join(record.format(i) * (1 + i % 3) for i in range(60)))


def author(folder: Path) -> None:
    (folder / "input.txt").write_text(VERSE * (1_020_000 // len(VERSE)))


def share(folder: Path) -> None:
    (folder / "my_texts.txt").write_text("Once upon a time there was a little cat. It sat on the mat.\n" * 100)
    line = f"train --data {folder}/my_texts.txt --out {folder}/runs/mine --text.vocab 300 {SMALL['train']}"
    assert main(line.split()) == 0


def adapt(folder: Path) -> None:
    """A tiny Llama as a GGUF file with its tokenizer."""
    pytest.importorskip("transformers")
    from model.test_gguf_file import SMOLLM, written

    _, path = written("llama", folder, **SMOLLM)
    path.rename(folder / "SmolLM2-135M-Instruct.Q4_1.gguf")
    (folder / "my_texts.txt").write_text("the cat sat on the mat. a dog ran off.\n" * 200)
    (folder / "unseen.txt").write_text("a cat ran off the mat.\n" * 40)


DATA: dict[str, Callable[[Path], None]] = {
    **{"products": products, "molecules": molecules, "dna": dna, "proteins": proteins},
    **{"author": author, "adapt": adapt, "share": share, "json": lambda folder: None},
}


def made_small(words: list[str]) -> list[str]:
    """A command in few steps; a number of minutes or samples is replaced, whatever it was."""
    verb, *rest = words
    flags = shlex.split(TUNED if "--init" in rest else SMALL.get(verb, "").replace("--text.length 32", ROW))
    if "--json" in rest and verb == "sample":
        flags = ["--n", "2"]  # a form needs its length
    for name, value in zip(flags[::2], flags[1::2], strict=True):
        if name in rest:
            rest[rest.index(name) + 1] = value
        elif verb != "infill" or name != "--n":
            rest += [name, value]
    if "--minutes" in rest:
        at = rest.index("--minutes")
        rest = rest[:at] + rest[at + 2 :]
    return [verb, *rest]


def run_line(line: str, page: Path) -> None:
    words = arguments_of(line)
    assert words is not None, f"{page.name}: {line} is no command of unmask, and does not say what it needs"
    written = words[words.index(">") + 1] if ">" in words else None
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = main(made_small(words[: words.index(">")] if written else words))
    assert code == 0, f"{page.name}: {line}"
    if written:
        Path(written).write_text(said.getvalue(), encoding="utf-8")


def test_every_recipe_has_data_here_and_a_line_in_the_index():
    assert {page.stem for page in PAGES} == DATA.keys()
    index = (ROOT / "docs/recipes/index.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert f"]({page.name})" in index


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_recipe_is_read_as_it_is_written(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in commands(page):
        check_is_read(line, page)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_recipe_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    DATA[page.stem](tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for language, code in blocks(page):
        if language == "bash":
            for line in code.replace("\\\n", " ").splitlines():
                if not needs(line):
                    run_line(line, page)
        elif "# needs rdkit" not in code or importlib.util.find_spec("rdkit"):
            for long, short in SMALLER.items():
                code = code.replace(long, short)
            exec(compile(code, page.name, "exec"), names)
    if page.stem == "products":
        given, filled = (rows_of(Path(name)) for name in ("blanks.csv", "filled.csv"))
        assert [row["name"] for row in filled] == [row["name"] for row in given]
        for before, after in zip(given, filled, strict=True):
            assert matches(before["description"], after["description"])


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def matches(template: str, text: str) -> bool:
    """The text is the template with its blanks filled."""
    given = [re.escape(part) for part in re.split(r"___|\[[\d-]+\]", template)]
    return re.fullmatch(".+".join(given), text, re.DOTALL) is not None
