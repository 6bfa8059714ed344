"""Damaged and hostile checkpoints: `load` and what `inspect` shows end in a UserError or in a working model."""

import atexit
import json
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from confined import confined
from contracts.members import spec_of
from tiny import LETTERS, checkpoint
from toys.backbone import Toy
from unmask.cli.inspect import describe_checkpoint, model_facts
from unmask.errors import UserError
from unmask.files import fingerprint
from unmask.model.adapter import Adapter, LowRankUpdates
from unmask.model.adapter_files import is_adapter, write_adapter
from unmask.model.checkpoint import load, save
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import generate
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.text.tokens.vocabulary import bpe, byte, character, dna

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork

about = "checkpoints with mutated files: refused in words or loaded, within 20 s of CPU and 1 GB"
usual = 10_000

# Texts that json.dumps cannot write; they replace their name in the finished file.
RAW = {
    "@deep@": "[" * 100_000 + "]" * 100_000,
    "@nested@": '{"a":' * 900 + "1" + "}" * 900,
    "@open@": "[" * 5_000,
    "@nan@": "NaN",
    "@inf@": "-Infinity",
    "@big@": "9" * 5_000,
    "@huge@": "1e999",
    "@half@": '"\\ud800"',
    "@zero@": '"\\u0000"',
}
ODD: list[Any] = [
    *RAW,
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    3,
    0.5,
    1e308,
    2**24,
    2**31,
    2**32 - 1,
    2**40,
    2**63 - 1,
    2**63,
    10**8,
    10**30,
    "",
    "a",
    "x" * 100_000,
    "é░\u202e",
    "../../../etc/passwd",
    "<|mask|>",
    [],
    {},
    [[]],
    [1, "a", None],
    {"content": 5},
    {"name": "mdlm"},
    {"type": "BPE"},
]
PATTERNS = [
    "(a|a)*b",
    "(a+)+$",
    "(?:a?){40}a{40}",
    r"\s+",
    "[ab]",
    "a{100000}",
    "((a{99}){99}){99}",
    "(",
    "",
    "(?=a)",
]
STEPS: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"},
    {"type": "Replace", "pattern": {"String": ""}, "content": "b"},
    {"type": "Replace", "pattern": {"Regex": "(a|a)*b"}, "content": "b"},
    {"type": "Prepend", "prepend": "ab" * 10},
    {"type": "Prepend", "prepend": "ab" * 1000},
    {"type": "NFKD"},
    {"type": "Lowercase"},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    {"type": "Digits", "individual_digits": True},
    {"type": "CharDelimiterSplit", "delimiter": "a"},
    {"type": "FixedLength", "length": 0},
    {"type": "Fuse"},
    {"type": "WordPiece", "prefix": "", "cleanup": True},
    {"type": "Strip", "content": "a", "start": 2**31, "stop": 1},
    {"type": "ByteFallback"},
    {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
]
MODELS: list[dict[str, Any]] = [
    {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 2**40},
    {"type": "WordLevel", "unk_token": "missing"},
    {"type": "Unigram", "unk_id": 7, "byte_fallback": True},
    {"type": "BPE", "dropout": 2.0, "merges": [["a", "b"]], "unk_token": "x"},
    {"type": "BPE", "continuing_subword_prefix": "p" * 5_000, "merges": []},
]


@cache
def bases() -> Path:
    """Checkpoints to damage, made once in a fork, so that this process starts no threads of the libraries."""
    folder = Path(tempfile.mkdtemp(prefix="attack-bases-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def make() -> None:
        checkpoint(folder / "letters")
        checkpoint(folder / "timed", objective="sedd", spare=2)
        checkpoint(folder / "causal", objective="ar", tokenizer=byte())
        checkpoint(folder / "merges", tokenizer=bpe([LETTERS * 20], 270))
        checkpoint(folder / "bases", tokenizer=dna())
        published = checkpoint(folder / "published")
        (published / "unmask.json").unlink()
        network = Toy(spec_of("toy-backbone", vocab=character([LETTERS]).size))
        save(folder / "toy", network, mask=character([LETTERS]).mask, tokenizer=character([LETTERS]))
        parts = shutil.copytree(published, folder / "parts")
        tensors = load_file(parts / "model.safetensors")
        (parts / "model.safetensors").unlink()
        names = sorted(tensors)
        places = {}
        for number, some in enumerate((names[::2], names[1::2]), 1):
            file = f"model-0000{number}-of-00002.safetensors"
            save_file({name: tensors[name] for name in some}, parts / file)
            places |= dict.fromkeys(some, file)
        (parts / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
        (folder / "adapter").mkdir()
        whole = load(folder / "letters")
        write_adapter(folder / "adapter", LowRankUpdates(whole.network, Adapter(rank=2)), str(whole.folder))

    assert confined(make) == "done"
    for base in folder.iterdir():
        exercise(base, drawn=True)  # what is imported and looked up here need not be in every fork
    return folder


def attempt(seed: int, folder: Path) -> str | None:
    """One damaged checkpoint; what went wrong, or None."""
    dice = random.Random(seed)
    base = dice.choice(sorted(path for path in bases().iterdir()))
    target = folder / "checkpoint"
    shutil.copytree(base, target)
    done = [dice.choice(DAMAGES)(dice, target) for _ in range(dice.choice((1, 1, 1, 2, 3)))]
    signed, drawn = dice.random() < 0.6, dice.random() < 0.2

    def use() -> None:
        if signed:
            sign(target)
        exercise(target, drawn=drawn)

    told = confined(use)
    return (
        f"{base.name}: {'; '.join(done)}{' (signed)' if signed else ''}\n{told}"
        if told.startswith("failed")
        else None
    )


def exercise(folder: Path, *, drawn: bool) -> None:
    """Load, inspect, encode, decode and, if asked, sample."""
    if not is_adapter(folder):
        list(model_facts(describe_checkpoint(folder)))
    model = load(folder)
    tokenizer = model.tokenizer
    if tokenizer is not None:
        for text in ("a bad cab, a gag.", "ACGT", "a" * 40, "\té░ \n12"):
            with suppress(UserError):
                tokenizer.encode(text)
        tokenizer.decode(range(min(tokenizer.size, 300)))
    if drawn:
        list(generate(model, Recipe(), length=8))


def sign(folder: Path) -> None:
    """Make the fingerprints in unmask.json fit the damaged files, so that the checks behind them are reached."""
    try:
        note = json.loads(data_of(folder / "unmask.json") or b"")
        if (folder / "model.safetensors").is_file():
            note["weights"] = fingerprint(folder / "model.safetensors")
        (folder / "unmask.json").write_text(json.dumps(note))
        if note["tokenizer"] is not None:
            note["tokenizer"] = Tokenizer.load(folder).fingerprint
        (folder / "unmask.json").write_text(json.dumps(note))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass


def spelled(content: Any) -> str:
    text = json.dumps(content)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text


def data_of(path: Path) -> bytes | None:
    """The content of a regular file; earlier damage may have left a FIFO or a link."""
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def put(path: Path, data: bytes) -> None:
    """Write a file in the place of whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def places_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values within a JSON value; of long lists and objects a few."""
    found = [at]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for number, (key, one) in enumerate(inner):
        if number < 40:
            found += places_in(one, (*at, key))
    return found


def changed(dice: random.Random, content: Any) -> tuple[Any, str]:
    """A JSON value with one place changed."""
    place = dice.choice(places_in(content)[1:] or [()])
    if not place:
        odd = deepcopy(dice.choice(ODD))
        return odd, f"all = {odd!r:.30}"
    *way, last = place
    holder = content
    for key in way:
        holder = holder[key]
    kind = dice.choice(("odd", "odd", "odd", "scale", "gone", "renamed", "wrapped", "added"))
    if kind == "gone":
        holder.pop(last)
    elif kind == "renamed" and isinstance(holder, dict):
        holder[dice.choice(["", "x" * 1000, "é", str(last) + "s", "name", "type"])] = holder.pop(last)
    elif kind == "wrapped":
        holder[last] = dice.choice(([holder[last]], {"a": holder[last]}, [deepcopy(holder[last]) for _ in range(3)]))
    elif kind == "scale" and type(holder[last]) in (int, float):
        holder[last] = dice.choice(
            (holder[last] * 2, holder[last] + 1, -holder[last], holder[last] * 10**6, holder[last] / 3)
        )
    elif kind == "added" and isinstance(holder, dict):
        name = dice.choice(("mask_index", "tied", "causal", "settings", "new", "block_size"))
        holder[name] = deepcopy(dice.choice(ODD))
    else:
        holder[last] = deepcopy(dice.choice(ODD))
    return content, f"{'.'.join(map(str, place))}: {kind} {str(holder)[:80] if len(str(holder)) < 200 else ''}"


def json_damage(dice: random.Random, folder: Path) -> str:
    path = folder / dice.choice(
        [
            "config.json",
            "config.json",
            "unmask.json",
            "unmask.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "model.safetensors.index.json",
        ]
        if (folder / "config.json").exists()
        else ["adapter_config.json"]
    )
    try:
        content = json.loads(data_of(path) or b"")
    except (ValueError, RecursionError):
        content = {"mask_token": "a", "pad_token": "b", "weight_map": {}}
    told = []
    for _ in range(dice.choice((1, 1, 2))):
        content, what = changed(dice, content)
        told.append(what)
    put(path, spelled(content).encode())
    return f"{path.name} {', '.join(told)}"


def tokenizer_damage(dice: random.Random, folder: Path) -> str:
    """A tokenizer with steps, a model or ids of its author's choice."""
    path = folder / "tokenizer.json"
    try:
        content = json.loads(data_of(path) or b"")
    except (ValueError, RecursionError):
        return json_damage(dice, folder)
    if not isinstance(content, dict) or not isinstance(content.get("added_tokens", []), list):
        return json_damage(dice, folder)
    part = dice.choice(
        ("normalizer", "pre_tokenizer", "decoder", "model", "ids", "added", "limits", "post_processor")
    )
    if part == "model":
        vocabulary = {"a": 0, "b": 1, "[UNK]": 2, " ": 3}
        model = dict(dice.choice(MODELS))
        model["vocab"] = [["a", -1.0], ["b", 0.0]] if model["type"] == "Unigram" else vocabulary
        content["model"] = model
    elif part == "ids" and isinstance(content.get("model"), dict) and isinstance(content["model"].get("vocab"), dict):
        for word in dice.sample(sorted(content["model"]["vocab"]), 1):
            content["model"]["vocab"][word] = dice.choice(
                (0, 2**16, 2**23, 2**24, 3 * 10**8, 2**31, 2**32 - 1, 2**40)
            )
    elif part == "added":
        token = {
            "id": dice.choice((0, 1, 999, 2**31)),
            "content": dice.choice(("", "a", "ab", "x" * 9_000)),
            "special": False,
            "single_word": False,
            "lstrip": True,
            "rstrip": True,
            "normalized": True,
        }
        content["added_tokens"] = [*content.get("added_tokens", []), token]
    elif part == "limits":
        content["truncation"] = {"max_length": 0, "strategy": "LongestFirst", "stride": 5, "direction": "Right"}
        content["padding"] = {
            "strategy": {"Fixed": 2**31},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "a",
        }
    else:
        steps = [dict(dice.choice(STEPS)) for _ in range(dice.choice((1, 1, 2, 5, 40, 200)))]
        if part == "pre_tokenizer" and dice.random() < 0.6:
            pattern = {"Regex": dice.choice(PATTERNS)}
            steps = [{"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}]
        plural = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}.get(
            part, "processors"
        )
        content[part] = {"type": "Sequence", plural: steps}
    put(path, json.dumps(content).encode())
    return f"tokenizer.json {part} {json.dumps(content.get(part))[:200]}"


def byte_damage(dice: random.Random, folder: Path) -> str:
    path = dice.choice(sorted(path for path in folder.iterdir() if path.is_file()) or [folder / "config.json"])
    data = bytearray(data_of(path) or b"{}")
    kind = dice.choice(("flip", "flip", "cut", "insert", "empty", "random", "mark", "double"))
    if kind == "flip":
        for _ in range(dice.choice((1, 1, 4, 64))):
            if data:
                data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    elif kind == "cut":
        del data[dice.randrange(len(data) + 1) :]
    elif kind == "insert":
        data[(at := dice.randrange(len(data) + 1)) : at] = dice.randbytes(dice.choice((1, 8, 1000)))
    elif kind == "empty":
        data = bytearray(dice.choice((b"", b"\0" * 1000, b"null", b"[]", b"{}", b" " * 100_000)))
    elif kind == "random":
        data = bytearray(dice.randbytes(dice.choice((10, 1000, 100_000))))
    elif kind == "mark":
        data = bytearray(dice.choice((b"\xef\xbb\xbf", b"\xff\xfe"))) + data
    else:
        data = data * 2
    put(path, bytes(data))
    return f"{path.name} {kind}"


def header_damage(dice: random.Random, folder: Path) -> str:
    """Another header of the weights, or other values."""
    path = dice.choice(sorted(folder.glob("*.safetensors")) or [folder / "model.safetensors"])
    try:
        data = data_of(path) or b""
        size = struct.unpack("<Q", data[:8])[0]
        header, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    except (ValueError, RecursionError, struct.error):
        return byte_damage(dice, folder)
    kind = dice.choice(("header", "header", "header", "length", "values", "renamed", "type", "shape"))
    name = (
        dice.choice(sorted(key for key in header if key != "__metadata__") or ["a"])
        if isinstance(header, dict)
        else ""
    )
    if kind == "header" or not isinstance(header, dict) or not isinstance(header.get(name), dict):
        header, told = changed(dice, header)
        kind = f"{kind} {told}"
    elif kind == "values":
        value = dice.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f"))
        at = dice.randrange(max(1, len(body) // 4)) * 4
        body[at : at + 4] = value
    elif kind == "renamed":
        header[dice.choice((name + ".x", "state.a", "parts.a", "", "backbone.", "é" * 5000))] = header.pop(name)
    elif kind == "type":
        header[name]["dtype"] = dice.choice(("F16", "BF16", "F64", "I32", "BOOL", "F8_E4M3", "F4", "X", "", "C64"))
    elif kind == "shape":
        header[name]["shape"] = dice.choice(([], [0], [2**32, 2**32], [-1], [1] * 100, header[name]["shape"][::-1]))
    text = spelled(header)
    length = dice.choice((0, 2**63, 2**64 - 1, 10**8, len(text) - 1)) if kind == "length" else len(text.encode())
    put(path, struct.pack("<Q", length) + text.encode() + body)
    return f"{path.name} {kind}"


def file_damage(dice: random.Random, folder: Path) -> str:
    """A file that is missing, of another kind, or not expected."""
    names = [
        "config.json",
        "unmask.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "merges.txt",
        "vocab.json",
        "vocab.txt",
        "best",
        "last",
    ]
    if not (folder / "config.json").exists():
        names = ["adapter_config.json", "adapter_model.safetensors", "unmask.json", "config.json"]
    path = folder / dice.choice(names)
    kind = dice.choice(("gone", "folder", "fifo", "loop", "zero", "outside", "inside", "extra", "text", "self"))
    if kind == "extra":
        path = folder / dice.choice(("pytorch_model.bin", "modeling.py", "x.safetensors", "y" * 250, "training.json"))
        path.write_bytes(dice.randbytes(100))
        return f"extra {path.name[:20]}"
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "text":
        path.write_text(
            dice.choice(("a\nb\n[UNK]\n", "#version: 0.2\na b\n", '{"a": 0, "b": 4294967295}', "a b c d\n", ""))
        )
    elif kind != "gone":
        where = {
            "loop": path.name,
            "zero": "/dev/zero",
            "outside": "/etc/passwd",
            "inside": "config.json",
            "self": ".",
        }
        path.symlink_to(where[kind])
    return f"{path.name} {kind}"


DAMAGES: list[Callable[[random.Random, Path], str]] = [
    *[json_damage] * 3,
    *[tokenizer_damage] * 2,
    byte_damage,
    header_damage,
    file_damage,
]
