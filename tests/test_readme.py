"""What the README and the how-to pages tell people to type works, and what they link to exists."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import tyro

from unmask.cli.main import main, verbs
from unmask.model.backbone import build
from unmask.model.backbones.bert import BertSpec
from unmask.model.checkpoint import save
from unmask.model.convert import convert
from unmask.text.tokens.tokenizer import Tokenizer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_is_short():
    assert len(README.splitlines()) <= 75


def test_every_make_target_in_the_docs_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for page in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        assert set(re.findall(r"\bmake ([a-z]+)\b *(?:#|`|$)", page, re.M)) <= targets


def test_every_verb_in_the_docs_exists():
    known = verbs()
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for verb in re.findall(r"(?:^ {4,}|`|^)unmask ([a-z]+)", page.read_text(encoding="utf-8"), re.M):
            assert verb in known, f"{page.name} names `unmask {verb}`"


def test_every_link_leads_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_page_is_in_the_sites_navigation():
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    assert {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")} <= listed


def test_every_import_in_the_docs_works():
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for module, names in re.findall(
            r"^ *from (unmask[\w.]*) import ([\w, ]+)$", page.read_text(encoding="utf-8"), re.M
        ):
            for name in names.split(", "):
                found = import_module(module)
                assert hasattr(found, name) or find_spec(f"{module}.{name}"), f"{page.name}: {module} has no {name}"


# ---- every block of code: run, or only read where it would take too long, or marked "# needs ..." in the page itself

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/how/*.md"))]
COMMAND = re.compile(r"(unmask|torchrun|python|pip|make|curl|srun) ")
NEEDED = 36  # lines and blocks that say what they need and our tests do not have: the hub, a cluster, a Ctrl-C
ELSEWHERE = {"extend.md": "tests/test_extend.py runs its commands, with its files as a package"}
ENDLESS = {"serve": "until it is stopped", "study": "trains many models; tests/studies runs such files"}
# What makes a command of the docs small; a value replaces the one that is given.
SMALL = {
    "train": "--steps 2 --model.width 16 --model.blocks 1 --model.heads 2 --text.length 32 --optim.batch 2 "
    "--run.eval-rows 2 --run.preview 0",
    "sample": "--length 40",
    "infill": "--passes 2 --tries 2 --n 1",
    "quality": "--n 2 --length 24",
    "frontier": "--n 2 --length 16 --steps 4",
    "report": "--samples 1 --length 16",
    "evaluate": "--rows 2 --passes 2",
    "classify": "--epochs 1 --rows 8 --batch 8 --seeds 1 --length 16",
}
SMALLER = [
    ("steps=200", "steps=3"),
    ("steps=500", "steps=2"),
    ("epochs=3, seeds=3", "steps=1, seeds=1, rows=8, length=16"),
    ('"width": 128', '"width": 16'),
    ("length=64", "length=16"),
]
TEXT = "Once upon a time there was a little cat. It sat on the mat and was happy. The end.\n"


def blocks(page: Path) -> list[tuple[str, str]]:
    """The code of a page in order, as (language, code): fenced, or indented if it begins with a command."""
    found, fence, language = [], None, ""
    indented: list[str] = []
    for line in [*page.read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("```"):
            if fence is None:
                fence, language = [], line[3:]
            else:
                found.append((language or "bash", "\n".join(fence)))
                fence = None
        elif fence is not None:
            fence.append(line)
        elif line.startswith("    ") and (indented or COMMAND.match(line.strip())):
            indented.append(line[4:])
        elif indented:
            found.append(("bash", "\n".join(indented)))
            indented = []
    return found


def commands(page: Path) -> list[str]:
    """The command lines of a page, continued lines joined."""
    joined = "\n".join(code for language, code in blocks(page) if language == "bash").replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if COMMAND.match(line.strip())]


def arguments_of(line: str) -> list[str] | None:
    """The arguments of `unmask` in a command line; None: another command."""
    words = shlex.split(line, comments=True)
    module = [i for i, pair in enumerate(pairwise(words)) if pair == ("-m", "unmask")]
    return words[1:] if words[0] == "unmask" else words[module[0] + 2 :] if module else None


def needs(line: str) -> bool:
    return "# needs " in line


def check_is_read(line: str, page: Path) -> None:
    """The command line parser takes a line of a page as it is written."""
    if (words := arguments_of(line)) is None:
        return
    module = import_module(f"unmask.cli.{words[0]}")
    rest = words[1 : words.index(">")] if ">" in words else words[1:]
    rest = module.words(rest) if hasattr(module, "words") else rest
    given = {"default": module.default(rest)} if hasattr(module, "default") else {}
    try:
        tyro.cli(module.Settings, args=rest, console_outputs=False, **given)
    except SystemExit:
        pytest.fail(f"{page.name}: {line}")


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("docs/recipes/*.md"))], ids=lambda page: page.name)
def test_every_block_of_code_is_known_and_python_compiles(page):
    for language, code in blocks(page):
        assert language in ("python", "bash", "toml"), f"{page.name}: ```{language}"
        if language == "python":
            compile(code, page.name, "exec")
        if language == "toml":
            tomllib.loads(code)


def test_what_our_tests_cannot_run_is_marked_and_counted():
    marked = [
        f"{page.name}: {line}"
        for page in PAGES
        for _, code in blocks(page)
        for line in code.split("\n")
        if needs(line)
    ]
    assert len(marked) == NEEDED, "\n".join(marked)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ELSEWHERE], ids=lambda page: page.name)
def test_every_command_in_the_docs_is_read_as_it_is_written(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for line in commands(page):
        check_is_read(line, page)


def test_every_extra_in_the_docs_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in [*PAGES, *ROOT.glob("docs/**/*.md")]:
        for named in re.findall(r"(?:unmask|\.)\[([a-z,]+)\]'", page.read_text(encoding="utf-8")):
            assert set(named.split(",")) <= extras.keys(), f"{page.name}: [{named}]"


@pytest.mark.slow
@pytest.mark.parametrize(
    "snippet",
    [
        code
        for page in (ROOT / "README.md", ROOT / "docs/why/maths.md")
        for language, code in blocks(page)
        if language == "python"
    ],
)
def test_the_python_in_the_readme_and_of_the_mathematics_runs(snippet):
    subprocess.run([sys.executable, "-c", snippet], check=True, cwd=ROOT)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with what the docs speak of: texts, a trained run, an autoregressive run, prepared data, results."""
    folder = tmp_path_factory.mktemp("docs")
    for name in (
        "my_texts/a.txt",
        "my_texts/b.txt",
        "texts/train.txt",
        "texts/test.txt",
        "held_out.txt",
        "stories.txt",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text((TEXT + name) * 60)
    rows = {
        "reviews.jsonl": [{"text": TEXT * (1 + i % 3), "label": ("happy", "sad")[i % 2]} for i in range(40)],
        "qa.jsonl": [{"question": "Who sat?", "text": " The cat."}] * 3,
        "chats.jsonl": [
            {"messages": [{"role": "user", "content": f"Hello {i}"}, {"role": "assistant", "content": "What is it?"}]}
            for i in range(60)
        ],
        "blimp.jsonl": [{"sentence_good": "The cat sat.", "sentence_bad": "The sat cat.", "UID": "order"}] * 3,
        "benchmarks/lambada/lambada_test.jsonl": [{"text": TEXT}] * 20,
    }
    for name, entries in rows.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    (folder / "molecules.csv").write_text("smiles\n" + "CCO\nC1=CC=CC=C1\nCC(=O)O\n" * 40)
    pairs = [f"What is {i} plus {j}?,It is {i + j}." for i in range(12) for j in range(12)]
    (folder / "pairs.csv").write_text("\n".join(["question,text", *pairs]))
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    (folder / "person.json").write_text(json.dumps(schema))
    bases = "".join(Random(0).choices("ACGT", k=4000))
    (folder / "genome.fa").write_text(f">chr1\n{bases}\n")
    (folder / "splits.bed").write_text("chr1\t0\t2000\ttrain\nchr1\t2000\t3000\tvalid\nchr1\t3000\t4000\ttest\n")
    (folder / "configs").symlink_to(ROOT / "configs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for out, flags in (("runs/mine", ""), ("runs/warm", ""), ("runs/ar", "--objective.name ar")):
            line = f"train --data my_texts/ --out {out} --text.vocab 300 --text.pack stream {flags} {SMALL['train']}"
            assert main(line.split()) == 0
        bert_in(folder / "my_bert")
        assert main(["prepare", "my_texts/", "--out", "data/"]) == 0
        for out in ("a.json", "b.json"):
            assert main(["evaluate", "runs/mine", "held_out.txt", "--rows", "2", "--out", out]) == 0
    return folder


def bert_in(folder: Path) -> None:
    """A small BERT with random weights, as transformers keeps one."""
    words = sorted({*re.findall(r"[a-z]+|[.]", TEXT.lower()), "##s", *"abcdefghijklmnopqrstuvwxyz/,"})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*special, *words]) + "\n")
    tokenizer = Tokenizer.load(folder)
    network = build(BertSpec(vocab=tokenizer.size, length=64, width=16, blocks=1, heads=2))
    save(folder / "ours", network, mask=tokenizer.mask, objective="mlm", tokenizer=tokenizer)
    convert(folder / "ours", folder / "again", to="bert")
    for file in (folder / "again").iterdir():
        file.rename(folder / file.name)


def made_small(words: list[str]) -> list[str]:
    """A command with small settings; a resumed run keeps its own."""
    verb, rest = words[0], words[1:]
    if "--minutes" in rest:
        rest[rest.index("--minutes") + 1] = "0.02"
    if "--resume" in rest or "--minutes" in rest or rest[0].endswith(".jsonl"):
        return [verb, *rest]
    flags = ("--steps 2" if "--guide" in rest else SMALL.get(verb, "")).split()
    if "caduceus" in rest:
        at = flags.index("--model.heads")
        del flags[at : at + 2]
    for name, value in zip(flags[::2], flags[1::2], strict=True):
        short = {"--n": "-n"}.get(name, name)
        at = next((i for i, word in enumerate(rest) if word in (name, short)), None)
        if "--window" in rest and name == "--length":
            value = "140"
        rest = [*rest, name, value] if at is None else [*rest[: at + 1], value, *rest[at + 2 :]]
    return [verb, *rest]


# Pages whose commands take longest; `make test` reads them as they are written, `make long` runs them too.
LONG = {
    f"{name}.md" for name in ("train", "sample", "tune", "control", "chat", "evaluate", "block", "bert", "sequences")
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] if page.name in LONG else [])
        for page in PAGES
        if page.name not in ELSEWHERE
    ],
    ids=lambda page: page.name,
)
def test_every_command_in_the_docs_runs(page, world, monkeypatch, capsys):
    monkeypatch.chdir(world)
    for line in commands(page):
        words = arguments_of(line)
        if words is None or needs(line) or words[0] in ENDLESS or not line.startswith("unmask"):
            continue
        written = words[words.index(">") + 1] if ">" in words else None
        words = words[: words.index(">")] if written else words
        out = Path(words[words.index("--out") + 1]) if "--out" in words else None
        if words[0] == "train" and out is not None and out.exists() and "--resume" not in words:
            shutil.rmtree(out)
        capsys.readouterr()
        assert main(made_small(words)) == 0, f"{page.name}: {line}\n{capsys.readouterr().err}"
        if written:
            Path(written).write_text(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.long
def test_the_python_in_the_docs_runs(world):
    """All pages in one process of their own, each with its own names; the server of serve.md is a real one."""
    pages = {page.name: [code for language, code in blocks(page) if language == "python"] for page in PAGES[1:]}
    (world / "pages.json").write_text(json.dumps(pages))
    (world / "run.py").write_text(RUNNER)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(world), str(ROOT / "tests"), str(ROOT / "tests/serving")])}
    ran = subprocess.run([sys.executable, "run.py"], cwd=world, env=env, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    assert ran.stdout.count("\npage ") == sum(map(bool, pages.values()))


RUNNER = f"""
import json, re
from pathlib import Path
from servers import serving
import unmask

for page, blocks in json.loads(Path("pages.json").read_text()).items():
    names = {{}}
    with serving(unmask.load("stories"), name="stories") as address:
        for code in blocks:
            named = re.match(r"# \\w+: (\\w+\\.py)\\n", code)
            if named:
                Path(named[1]).write_text(code)
                continue
            first, *_ = code.splitlines()
            if "# needs " in first:
                continue
            code = "\\n".join(line for line in code.splitlines() if "# needs " not in line)
            for long, short in {[*SMALLER, ("http://127.0.0.1:8000", "{address}")]!r}:
                code = code.replace(long, short.replace("{{address}}", address))
            exec(compile(code, page, "exec"), names)
    if blocks:
        print("\\npage", page, flush=True)
"""


@pytest.mark.slow
def test_the_demo_shows_a_story_fills_a_blank_trains_and_bounds(tmp_path, capsys):
    assert main(["demo", "--minutes", "0.01", "--out", str(tmp_path / "demo")]) == 0
    out = "".join(capsys.readouterr())
    for said in (
        "Once upon a time",
        "forward passes",
        "Lily went to the park",
        "mdlm: steps 6 to 20",
        "nats per token",
        "unmask serve",
    ):
        assert said in out
