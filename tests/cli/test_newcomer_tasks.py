"""A newcomer finds the verb for a task from `unmask --help` alone, and the names of a flag from `FLAG help`."""

import re
import subprocess
import sys
from importlib import import_module

import pytest

from unmask.cli.help import options
from unmask.cli.main import FOLDER, GROUPS, RENAMED, main, named_default, usage, verbs
from unmask.cli.names import NAMES, listed_names, names_of
from unmask.cli.stored_help import read_stored
from unmask.diffusion.objective import OBJECTIVES
from unmask.errors import UserError
from unmask.evaluation.likelihood.estimators import estimator
from unmask.model.backbone import BACKBONES
from unmask.sampling.policy import POLICIES
from unmask.sampling.stale import CACHES
from unmask.text.corpus.chat_template import ChatTemplate
from unmask.text.corpus.detokenize import detokenizer
from unmask.text.corpus.documents import FileLayout
from unmask.text.layout import LAYOUTS
from unmask.text.tokens.vocabulary import build_tokenizer
from write_help import component_choices

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


def free(*flags):
    """Flags whose values nobody has registered: files, texts, addresses, names of things on this machine."""
    return {f"--{flag}" for flag in flags}


FREE = free(
    *("config", "out", "init", "data-root", "pairs", "pair", "test", "valid", "train", "intervals"),  # files
    *("classifier", "adapter", "drafter", "prompts"),  # models, and files
    *("field", "given", "answer", "by", "key", "label", "split", "classifier-label"),  # what a file has
    *("prompt", "until", "system", "separator", "pattern", "one-of", "form", "json-schema"),  # texts
    *("host", "hosts", "name", "origins", "on", "launcher", "license", "part"),  # machines, owners
    *("rows", "scale"),  # of the study's file, whose names an error lists
    *("adapter.targets", "model.complement"),  # layers and ids of a model
)
REPOSITORY = ("push", "--to")
OF_A_MODEL = ("quality", "--tokenizer")


def flags_with_words():
    """Every flag of a verb or a component that takes something else than a number, a path or a choice."""
    for verb in verbs():
        module = import_module(f"unmask.cli.{verb}")
        for arguments in component_choices(module):
            own, groups = options(module.Settings, named_default(module, arguments), "")
            for line, _, positional in [*own, *(one for _, group in groups for one in group)]:
                *flags, last = line.split(", ")
                flag, _, metavar = last.partition(" ")
                if not positional and metavar and not re.fullmatch(r"(N|X|PATH|\{.*\})( \.\.)?", metavar):
                    yield from ((verb, one) for one in (*flags, flag))


def test_a_flag_that_takes_a_name_answers_help_and_no_other_one_is_forgotten():
    for verb, flag in sorted(set(flags_with_words())):
        bare = flag.replace("--text.", "--")
        known = listed_names(verb, [flag, "help"])
        if bare in FREE or (verb, flag) in (REPOSITORY, OF_A_MODEL):
            assert known is None, (verb, flag)
        else:
            assert known is not None, (
                f"{verb} {flag}: register its names in cli/names.py, or say here that it has none"
            )


@pytest.mark.parametrize("key", NAMES)
def test_help_as_a_name_lists_every_member_with_a_line(key, capsys):
    flag = key.split()[-1]
    verb = key.split()[0] if " " in key else next(verb for verb in verbs() if flag in read_stored()[verb]["flags"])
    assert main([verb, flag, "help"]) == 0
    option, *shown = capsys.readouterr().out.splitlines()
    assert option.startswith("-")
    assert flag in option
    lines = {line.split()[0]: line for line in shown}
    assert list(lines) == list(names_of(verb, flag))
    assert all(len(line.split()) > 1 for line in lines.values()), "a line about each"
    assert max(map(len, shown)) <= 180, "a line about it, not what a dataclass writes"


def test_the_names_are_those_that_the_code_takes():
    assert set(POLICIES) == set(names_of("sample", "--sampler")) == set(names_of("frontier", "--samplers"))
    assert set(BACKBONES) == set(names_of("train", "--model.name"))
    assert set(CACHES) == set(names_of("chat", "--cache"))
    assert set(LAYOUTS) == set(names_of("evaluate", "--pack")) == set(names_of("train", "--text.pack"))
    for kind in set(names_of("prepare", "--tokenizer")):
        assert build_tokenizer(kind, ["some text"], size=300).size
    for name in names_of("evaluate", "--detokenize"):
        assert detokenizer(name)("a text")
    for order in names_of("evaluate", "--policy"):
        assert estimator("duel", policy=order).policy == order
    for unit in names_of("train", "--documents"):
        assert FileLayout(documents=unit)
    for name in names_of("train", "--template"):
        assert ChatTemplate.named(name).text


def test_every_estimator_that_some_objective_takes_is_listed_and_no_other():
    taken = set()
    for name in OBJECTIVES:
        with pytest.raises(UserError) as refused:
            estimator("nonsense", objective=name)
        taken |= set(str(refused.value).partition("Known: ")[2].rstrip(".").split(", "))
    assert set(names_of("evaluate", "--estimator")) == taken


@pytest.mark.parametrize(
    ("words", "choice"),
    [
        (["train", "--recipe", "help"], "warm"),
        (["classify", "--schedule=help"], "cosine"),
        (["train", "--optim.schedule", "help"], "constant"),
        (["quality", "x", "--check", "help"], "steps"),
    ],
)
def test_choices_are_listed_too_and_of_this_flag(words, choice, capsys):
    assert main(words) == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert choice in shown
    assert "log-linear" not in shown, "a schedule of noise is no schedule of learning rates"


def test_help_as_a_text_is_a_text(capsys):
    assert main(["sample", "no-such-model", "--prompt", "help"]) == 2
    assert "no-such-model" in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "wanted"), [("sam", "sample"), ("sample --top", "--top-p")])
def test_the_shell_completes_verbs_and_flags(typed, wanted):
    script = f"""unmask() {{ "{sys.executable}" -m unmask "$@"; }}
        eval "$(unmask --completion)"; COMP_WORDS=(unmask {typed}); COMP_CWORD={len(typed.split())}; _unmask
        echo "${{COMPREPLY[@]}}" """
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
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
