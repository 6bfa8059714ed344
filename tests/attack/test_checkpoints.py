"""Checkpoints of strangers: hand-made ones and mutated ones are refused in words, or load."""

import base64
import json
import os
import re
import shutil

import pytest
import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers

from attack.checkpoints import attempt, bases, exercise
from confined import confined, failures
from unmask.cli.inspect import describe_checkpoint
from unmask.errors import UserError
from unmask.model.checkpoint import load
from unmask.text.tokens.backtracking import check_regex
from unmask.text.tokens.limits import growth
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.text.tokens.vocabulary import dna
from unmask.untrusted import check_links

pytestmark = pytest.mark.slow


DEEP = "[" * 100_000 + "]" * 100_000
# Patterns of published tokenizers: cl100k, o200k, digits from the right, BLOOM, DeepSeek, CLIP.
PUBLISHED = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"(?=(\d{3})+(?!\d))",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    r"[一-龥぀-ゟ゠-ヿ]+",
]
EXPONENTIAL = [
    "(a+)+b",
    "(a|a)*b",
    "(?:a?){30}",
    r"(a)\1+",
    "a**",
    "a{1,5}{1,5}",
    r"\s*\s*\s*\s*\s*x",
    "((a{100}){100}){100}",
    "a{9999999}",
    "(?~ab)",
    "(?x) (a+ # )\n)+",
    "[]a]+",
    r"(a+\c)\c()+",
    "(((a*)))*",
    "(?:a{2,3})+",
    "(a",
    "a)",
    "x" * 6_000,
]


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(bases() / "letters", tmp_path / "checkpoint")


def change(folder, name, **keys):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def in_note(**keys):
    return lambda folder: change(folder, "unmask.json", **keys)


def in_config(**keys):
    return lambda folder: change(folder, "config.json", **keys)


def in_tokenizer(**keys):
    return lambda folder: change(folder, "tokenizer.json", **keys)


def in_probe(**keys):
    def damage(folder):
        probe = json.loads((folder / "unmask.json").read_text())["probe"]
        change(folder, "unmask.json", probe=probe | keys)

    return damage


def text(name, content):
    return lambda folder: (folder / name).write_text(content)


def instead(name, make):
    def damage(folder):
        (folder / name).unlink()
        make(folder / name)

    return damage


def vocabulary(**ids):
    def damage(folder):
        model = json.loads((folder / "tokenizer.json").read_text())["model"]
        change(folder, "tokenizer.json", model=model | {"vocab": model["vocab"] | ids})

    return damage


def split(pattern):
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return in_tokenizer(pre_tokenizer=step)


def steps(count, **step):
    return in_tokenizer(normalizer={"type": "Sequence", "normalizers": [step] * count})


def moved_out(path):
    outside = path.parent.parent / "elsewhere.json"
    outside.write_text("{}")
    path.symlink_to(outside)


REFUSED = {
    "a hundred million blocks": (in_config(n_blocks=10**8), "more layers than the"),
    "a vocabulary of 2^63": (in_config(vocab_size=2**63), "out of range"),
    "a vocabulary of 2^62": (in_config(vocab_size=2**62), "vocab = 4611686018427387904"),
    "a width of 2^40": (in_config(hidden_dim=2**40), "width = 1099511627776"),
    "a length of 2^40": (in_config(model_length=2**40), "length = 1099511627776"),
    "a number of 5,000 digits": (text("config.json", '{"n_blocks": ' + "9" * 5_000 + "}"), "out of range"),
    "NaN": (text("config.json", '{"dropout": NaN}'), "NaN is not a number"),
    "half a surrogate pair": (text("config.json", '{"model_type": "\\ud800"}'), "surrogate pair"),
    **{
        f"{name} nested deeply": (text(name, DEEP), "nested more than 64 levels")
        for name in ("config.json", "unmask.json", "tokenizer.json", "tokenizer_config.json")
    },
    "a large config": (text("config.json", "[" + " " * (16 << 20) + "]"), "larger than 16 MB"),
    "many lists": (text("config.json", "[" + "[]," * 4_000_001 + "[]]"), "more than 4,000,000 lists"),
    "a config that is a list": (text("config.json", "[]"), "should hold a JSON object"),
    "a config that is a folder": (instead("config.json", lambda path: path.mkdir()), "not a regular file"),
    "a config that is a FIFO": (instead("config.json", os.mkfifo), "not a regular file"),
    "a config that is /dev/zero": (instead("config.json", lambda path: path.symlink_to("/dev/zero")), "outside"),
    "a config that links to itself": (instead("config.json", lambda path: path.symlink_to(path)), "leads back"),
    "a config that links outside": (instead("config.json", moved_out), "outside its folder"),
    "a note that is a number": (text("unmask.json", "5"), "should hold a JSON object"),
    "a note that is a FIFO": (instead("unmask.json", os.mkfifo), "not a regular file"),
    "a tokenizer's fingerprint of 5": (in_note(tokenizer=5), "tokenizer is 5, not a sha256"),
    "settings of 5": (in_note(settings=5), "settings is 5, not a table"),
    "a step in words": (in_note(step="many"), "step is 'many'"),
    "an EMA of 3": (in_note(ema=3), "ema is 3"),
    "a probe of 5": (in_note(probe=5), "probe is 5, not a table"),
    "a probe of strings": (in_probe(tokens=[["a"] * 4] * 2), "ids must be whole numbers"),
    "a probe of floats": (in_probe(ids=[1.5]), "ids must be whole numbers"),
    "a probe without a mask": (in_probe(tokens=[[1] * 4] * 2), "it hides no token"),
    "a long probe": (in_probe(tokens=[[1] * 50_000] * 2), "2 rows of 1 to 16"),
    "a probe without answers": (in_probe(log_probs=[]), "no list 'log_probs'"),
    "a probe of negative noise": (in_probe(sigma=[-1, 2]), "noise levels"),
    "a configuration that is a list": (text("tokenizer_config.json", "[]"), "should hold a JSON object"),
    "a map that is a number": (text("special_tokens_map.json", "5"), "should hold a JSON object"),
    "a mask named by a number": (text("tokenizer_config.json", '{"mask_token": 5}'), "mask_token = 5: it must be"),
    "a mask named by half a surrogate pair": (
        text("tokenizer_config.json", '{"mask_token": "\\ud800"}'),
        r"mask_token = '\\ud800': it must be a text",
    ),
    "an id of 2^31": (vocabulary(a=2**31), "the id 2147483648"),
    "an id of 2^32 - 1": (vocabulary(a=2**32 - 1), "the id 4294967295"),
    "an id of 2^24 - 1": (vocabulary(a=2**24 - 1), "another|not the one|belong together"),
    "a token of 5,000 letters": (vocabulary(**{"x" * 5_000: 3}), "a token has more than"),
    "a catastrophic pattern": (split("(a|a)*b"), "may take exponential time"),
    "forty doublings": (steps(40, type="Replace", pattern={"String": "a"}, content="aa"), "more than 4,096 times"),
    "forty empty patterns": (steps(40, type="Replace", pattern={"Regex": "c"}, content="c"), "more than 4,096 times"),
    "many steps": (steps(200, type="Lowercase"), "200 steps after each other"),
    "a long prefix": (steps(1, type="Prepend", prepend="a" * 5_000), "puts 5000 characters"),
    "a pickle": (instead("model.safetensors", lambda path: path.with_name("model.bin").touch()), "files only"),
    "weights that are a FIFO": (instead("model.safetensors", os.mkfifo), r"has no model\.safetensors"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_checkpoint_is_refused_in_words(name, folder):
    damage, told = REFUSED[name]
    damage(folder)
    answer = confined(lambda: load(folder), memory=700 << 20, seconds=10)
    assert answer.startswith("refused: "), answer
    assert re.search(told, answer), answer


def over(base):
    return lambda folder: change(folder, "adapter_config.json", base_model_name_or_path=base or str(folder))


ADAPTERS = {
    "an adapter over itself": (over(""), "which is an adapter too"),
    "a base with a zero byte": (over("a\0b"), "zero byte"),
    "a base elsewhere on the disk": (over("/etc"), "is not a checkpoint"),
    "a rank of 10^9": (lambda folder: change(folder, "adapter_config.json", r=10**9), "a rank from 1 to"),
    "a list of settings": (text("adapter_config.json", "[]"), "should hold a JSON object"),
    "updates that are a FIFO": (instead("adapter_model.safetensors", os.mkfifo), "not a regular file"),
    "updates that are gone": (instead("adapter_model.safetensors", lambda path: None), "No such file"),
    "updates that link outside": (instead("adapter_model.safetensors", moved_out), "outside its folder"),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_hostile_adapter_is_refused_in_words(name, tmp_path):
    damage, told = ADAPTERS[name]
    adapter = shutil.copytree(bases() / "adapter", tmp_path / "adapter")
    damage(adapter)
    answer = confined(lambda: load(adapter), memory=700 << 20, seconds=10)
    assert answer.startswith("refused: "), answer
    assert re.search(told, answer), answer


def test_an_adapter_is_inspected_by_its_base():
    answer = confined(lambda: describe_checkpoint(bases() / "adapter"))
    assert "is an adapter over" in answer
    assert str(bases() / "letters") in answer


@pytest.mark.parametrize(
    "name", ["adapter", "letters", "timed", "causal", "merges", "bases", "published", "toy", "parts"]
)
def test_what_is_damaged_here_loads_when_it_is_whole(name):
    assert confined(lambda: exercise(bases() / name, drawn=False)) == "done"


@pytest.mark.slow
def test_forty_mutations_are_refused_in_words_or_load(tmp_path):
    assert failures(attempt, range(1, 41), tmp_path) == {}


@pytest.mark.attack
@pytest.mark.parametrize("start", range(1001, 1601, 100))
def test_mutations_are_refused_in_words_or_load(start, tmp_path):
    assert failures(attempt, range(start, start + 100), tmp_path) == {}


def test_links_are_followed_within_a_run_and_within_the_hubs_cache(folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(folder, run / "checkpoints" / "step-1")
    (run / "best").symlink_to("checkpoints/step-1")
    assert load(run).folder == run / "best"
    (run / "best").unlink()
    (run / "best").symlink_to(folder)
    with pytest.raises(UserError, match="outside the run"):
        load(run)
    snapshot = tmp_path / "models--a--b" / "snapshots" / "revision"
    blobs = snapshot.parent.parent / "blobs"
    for path in (snapshot, blobs):
        path.mkdir(parents=True)
    for path in folder.iterdir():
        shutil.copy(path, blobs / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    assert load(snapshot).self_test is not None
    shutil.move(blobs, tmp_path / "blobs")
    blobs.symlink_to(tmp_path / "blobs")  # the cache's own folder must not be a link either
    with pytest.raises(UserError, match="outside its folder"):
        check_links(snapshot, ["*.json"])


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_the_patterns_of_published_tokenizers_are_accepted(pattern):
    check_regex(pattern)
    pre_tokenizers.Split(Regex(pattern), "isolated")


@pytest.mark.parametrize("pattern", EXPONENTIAL)
def test_a_pattern_that_may_take_exponential_time_is_refused(pattern):
    with pytest.raises(UserError, match="may take exponential time"):
        check_regex(pattern)


def described(normalizer):
    core = tokenizers.Tokenizer(models.BPE())
    core.normalizer = normalizer
    return json.loads(core.to_str())["normalizer"]


@pytest.mark.parametrize(
    ("normalizer", "texts"),
    [
        (normalizers.Replace("ab", "xyzab"), ["ababab", "ab"]),
        (normalizers.Replace("a", "aa"), ["aaaa"]),
        (normalizers.Replace("", "xy"), ["ab"]),
        (normalizers.Replace(Regex("(?=a)"), "xyz"), ["aaaa", "bab"]),
        (normalizers.Sequence([normalizers.Replace("a", "bb"), normalizers.Replace("b", "ccc")]), ["aab"]),
        (normalizers.Sequence([normalizers.Replace("a", "\ufdfa"), normalizers.NFKD()]), ["aaa"]),
        (normalizers.Lowercase(), ["İİ"]),
        (normalizers.NFKD(), ["\ufdfa"]),
        (normalizers.NFD(), ["ΐ\u1f82"]),
        (normalizers.BertNormalizer(), ["中İ", "\u1f82"]),
        (normalizers.ByteLevel(), ["😀é"]),
        (dna().core.normalizer, ["acgtR"]),
    ],
)
def test_no_text_grows_more_than_its_normalizer_is_said_to_allow(normalizer, texts):
    bound = growth(described(normalizer))
    for text in texts:
        assert len(normalizer.normalize_str(text)) <= bound * len(text) + bound
    assert bound <= 4096


def test_a_table_of_replacements_grows_by_its_longest_text():
    tree = b"\0" * 8
    table = base64.b64encode(len(tree).to_bytes(4, "little") + tree + b"a\0" + b"b" * 300 + b"\0c\0").decode()
    assert growth({"type": "Precompiled", "precompiled_charsmap": table}) == 300


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Replace", "pattern": {"String": "ab"}, "content": "c"}},
        {"added_tokens": [{"id": 60, "content": "ab", "special": False, "normalized": False, "lstrip": False,
                           "rstrip": False, "single_word": False}]},
        {"model": {"type": "BPE", "vocab": {"a": 0, "#b": 2}, "merges": [], "continuing_subword_prefix": "#"}},
    ],
)  # fmt: skip
def test_a_tokenizer_whose_letters_depend_on_each_other_gives_the_librarys_ids(change, folder):
    change_file = json.loads((folder / "tokenizer.json").read_text()) | change
    (folder / "tokenizer.json").write_text(json.dumps(change_file))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode("ab") == tokenizer.core.encode("ab", add_special_tokens=False).ids
    assert tokenizer.letters is None
