"""A newcomer finds the verb for a task from `unmask --help` alone, and the names of a flag from `FLAG help`."""

import re
import subprocess
import sys

import pytest

from unmask.cli.main import FOLDER, GROUPS, RENAMED, main, usage, verbs
from unmask.model.backbone import BACKBONES
from unmask.sampling.policy import POLICIES

TASKS = {  # what a person wants, in words that the right verb's line has: the verb and its group
    "train a model on my own texts": ("train", "Train a model"),
    "turn text into token shards before training": ("prepare", "Train a model"),
    "classify texts or predict a number": ("classify", "Train a model"),
    "generate text from a model": ("sample", "Use a model"),
    "fill the blanks of a template": ("infill", "Use a model"),
    "serve an OpenAI-compatible API and a page": ("serve", "Use a model"),
    "score variants of a DNA sequence": ("variants", "Use a model"),
    "measure perplexity of a model on text": ("evaluate", "Measure a model"),
    "judge samples by generative perplexity": ("quality", "Measure a model"),
    "compare learning curves or two results": ("report", "Measure a model"),
    "reproduce a table of the paper, with several systems and seeds": ("study", "Measure a model"),
    "describe a model, or what is installed": ("inspect", "Share a model"),
    "convert a checkpoint to another format": ("convert", "Share a model"),
    "publish a checkpoint on the hub": ("push", "Share a model"),
}
SMALL_WORDS = set(
    [
        "a",
        "an",
        "and",
        "of",
        "on",
        "my",
        "or",
        "the",
        "to",
        "what",
        "is",
        "before",
        "with",
        "by",
        "from",
        "several",
        "two",
        "another",
        "own",
    ]
)


def words(text):
    return {word.rstrip("s") for word in re.findall(r"[a-z]+", text.lower())} - SMALL_WORDS


@pytest.mark.parametrize("task", TASKS)
def test_the_line_of_the_right_verb_has_the_most_words_of_the_task(task):
    verb, group = TASKS[task]
    assert verb in GROUPS[group]
    shared = {name: len(words(task) & words(f"{name} {line}")) for name, line in verbs().items()}
    best = max(shared.values())
    assert [name for name, count in shared.items() if count == best] == [verb], shared
    assert best >= 2


def test_every_verb_is_in_one_group_and_every_file_with_settings_is_a_verb():
    grouped = [verb for group in GROUPS.values() for verb in group]
    files = [path.stem for path in FOLDER.glob("*.py") if re.search(r"^class Settings\b", path.read_text(), re.M)]
    assert sorted(grouped) == sorted(files)
    assert len(grouped) <= 17


def test_help_shows_the_groups_and_the_common_verbs_first():
    lines = usage().splitlines()
    places = [lines.index(f"{title}:") for title in GROUPS]
    assert places == sorted(places)
    assert all(lines[place + 1].split()[0] == group[0] for place, group in zip(places, GROUPS.values(), strict=True))
    assert len(lines) <= 35, "one screen"
    assert max(map(len, lines)) <= 118


@pytest.mark.parametrize("verb", RENAMED)
def test_a_verb_of_old_answers_with_the_command_to_type(verb, capsys):
    assert verb not in verbs()
    assert main([verb, "anything"]) == 2
    said = capsys.readouterr().err
    assert RENAMED[verb] in said
    assert RENAMED[verb].split()[1] in verbs()


@pytest.mark.parametrize(
    ("arguments", "registry"),
    [(["sample", "stories", "--sampler", "help"], POLICIES), (["train", "--model.name", "help"], BACKBONES)],
)
def test_help_as_a_name_lists_every_member_with_a_line(arguments, registry, capsys):
    assert main(arguments) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert set(registry) <= lines.keys()
    assert all(len(line.split()) > 2 for line in lines.values())


@pytest.mark.parametrize(
    "flag", ["--objective.name", "--objective.schedule", "--objective.times", "--optim.name", "--text.pack"]
)
def test_the_names_of_training_are_listed_too(flag, capsys):
    assert main(["train", flag, "help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 4
    assert max(map(len, lines)) <= 140, "a line about it, not what a dataclass writes"


def test_help_as_a_text_is_a_text(capsys):
    assert main(["sample", "no-such-model", "--prompt", "help"]) == 2
    assert "no-such-model" in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "wanted"), [("sam", "sample"), ("sample --top", "--top-p")])
def test_the_shell_completes_verbs_and_flags(typed, wanted):
    script = f"""unmask() {{ "{sys.executable}" -m unmask "$@"; }}
        eval "$(unmask --completion)"; COMP_WORDS=(unmask {typed}); COMP_CWORD={len(typed.split())}; _unmask
        echo "${{COMPREPLY[@]}}" """
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert wanted in ran.stdout.split()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["study", "nope.toml"], "cannot read nope.toml"),
        (["sample", "my_texts"], "my_texts is not a checkpoint: a folder without config.json"),
        (["sample", "stories", "--sampler", "threshold:tua=0.8"], "Did you mean 'tau'? Known: tau.\n"),
        (["infill", "stories-ar", "a [2] b"], "unmask: "),  # no header before the error
    ],
)
def test_a_mistake_is_answered_in_one_line_that_names_it(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_texts").mkdir()
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.startswith("unmask: ")
    assert len(shown.splitlines()) == 1
