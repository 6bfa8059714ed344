"""Generative perplexity by three definitions, against recorded values, by hand, and whatever the batch."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import tiny
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.evaluation.quality import perplexity as quality
from unmask.evaluation.quality.judges import judge, judged_nats
from unmask.model.checkpoint import load

GOLDEN = Path(__file__).parents[2] / "golden" / "generative_perplexity.npz"
ABC = "abcdefghijklmnopqrstuv"


@dataclass(frozen=True)
class Scripted:
    """A judge whose answers for whole rows are written down."""

    tokens: torch.Tensor
    logits: torch.Tensor
    eos: int
    most: int = 1024
    about: ClassVar = {}

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]

    def nats(self, tokens):
        found = torch.zeros(tokens.shape)
        for row, ids in enumerate(tokens):
            script = next(i for i, known in enumerate(self.tokens) if torch.equal(known, ids))
            log_p = self.logits[script, :-1].log_softmax(-1)
            found[row, 1:] = -log_p.gather(1, ids[1:, None]).squeeze(1)
        return found


def recorded():
    known = np.load(GOLDEN)
    tokens, eos = torch.from_numpy(known["gen_tokens"]), int(known["gen_eos"])
    one = Scripted(tokens, torch.from_numpy(known["gen_logits"]), eos)
    samples = [documents(row.tolist(), eos) for row in tokens]
    return one, samples, known


def documents(ids, eos):
    parts = [[]]
    for id in ids:
        parts[-1].append(chr(ord("a") + id)) if id != eos else parts.append([])
    return ["".join(part) for part in parts]


def test_pooled_perplexity_is_the_recorded_one_and_no_sample_is_dropped():
    one, samples, known = recorded()
    used = int(known["gen_samples_used"])
    assert used < len(samples)
    found = quality.perplexity(quality.read_by_judge(one, samples[:used]), "pooled")
    assert found.perplexity == pytest.approx(float(known["gen_ppl"]), rel=1e-5)
    every = quality.perplexity(quality.read_by_judge(one, samples), "pooled")
    counted = sum(
        int((row != one.eos)[1:].sum()) + int(one.eos in row[1:] and row[0] != one.eos) for row in one.tokens
    )
    assert every.tokens == counted
    assert every.perplexity != pytest.approx(found.perplexity, rel=1e-3)


def test_the_definitions_differ_as_they_say():
    one, samples, _ = recorded()
    found = quality.perplexities(quality.read_by_judge(one, samples))
    nats = one.nats(one.tokens)[:, 1:].double()
    alive = one.tokens[:, 1:] != one.eos
    assert found["mean"].perplexity == pytest.approx(float(nats.mean(1).exp().mean()), rel=1e-6)
    assert found["sliding"].perplexity == pytest.approx(float(nats[alive].mean().exp()), rel=1e-6)
    assert found["mean"].tokens > found["pooled"].tokens > found["sliding"].tokens
    error = float(nats.mean(1).exp().std() / math.sqrt(len(nats)))
    assert found["mean"].standard_error == pytest.approx(error, rel=1e-6)


@dataclass(frozen=True)
class Counting:
    """A judge that charges for a token the number of tokens it has seen before it."""

    eos: int = 99
    most: int = 4
    about: ClassVar = {}

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]

    def nats(self, tokens):
        return torch.arange(tokens.shape[1]).float().expand(tokens.shape)


def test_a_sliding_window_gives_each_token_the_context_that_blocks_deny():
    read = quality.read_by_judge(Counting(), [["abcdefghij"], ["abc"]])
    nan = float("nan")
    np.testing.assert_array_equal(read.blocks[0], [nan, 1, 2, 3, nan, 1, 2, 3, nan, 1])
    np.testing.assert_array_equal(read.sliding[0], [nan, 1, 2, 3, 2, 3, 2, 3, 2, 3])
    np.testing.assert_array_equal(read.blocks[1], [nan, 1, 2])


def test_the_first_eos_of_each_block_counts_and_no_other():
    read = quality.read_by_judge(Counting(), [["a", "", "b", "c"], ["abc"]])  # a . . b | . c
    assert read.rows[0].tolist() == [0, 99, 99, 1, 99, 2]
    assert quality.perplexity(read, "pooled").tokens == 2 + 1 + 2  # in the second block eos comes first, unscored
    assert quality.perplexity(read, "sliding").tokens == 2 + 2
    assert quality.perplexity(read, "mean").tokens == 3 + 1 + 2


def test_the_error_bar_is_the_spread_of_repeated_sets_of_samples():
    draws = np.random.default_rng(0)

    @dataclass(frozen=True)
    class Noisy(Counting):
        most: int = 64

        def nats(self, tokens):
            shared = draws.normal(size=(len(tokens), 1))  # the tokens of a sample are alike
            return torch.from_numpy(2 + 0.5 * shared + 0.1 * draws.normal(size=tuple(tokens.shape)))

    values, told = [], []
    for _ in range(200):
        samples = [["a" * int(n)] for n in draws.integers(5, 40, 30)]
        found = quality.perplexity(quality.read_by_judge(Noisy(), samples), "pooled")
        values.append(found.perplexity)
        told.append(found.standard_error)
    assert np.mean(told) == pytest.approx(np.std(values), rel=0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("judges")
    tiny.checkpoint(root / "ar", objective="ar")
    tiny.checkpoint(root / "mdlm")
    written(root / "gpt2")
    lines = [{"text": text} for text in ("abab. cab", "bad cafe, abba", "a", "")]
    (root / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def written(folder):
    """A small random GPT-2 of transformers, with a tokenizer of letters."""
    import transformers

    tiny_tokenizer = load(tiny.checkpoint(folder.with_name("letters"))).tokenizer
    tiny_tokenizer.save(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=tiny_tokenizer.size, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)


@pytest.mark.parametrize("name", ["ar", "gpt2"])
def test_a_batch_of_unequal_rows_changes_no_number(folder, name):
    one = judge(str(folder / name))
    rows = [np.array(one.encode(text)) for text in ("abc", "gfedcba", "aa. b,c d", "b")]
    together, alone = judged_nats(one, rows), [judged_nats(one, [row])[0] for row in rows]
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
    assert all(paid[0] == 0 for paid in together)


def test_a_judge_of_transformers_gives_its_own_loss(folder):
    one = judge(str(folder / "gpt2"))
    ids = torch.tensor([one.encode("gfed cba")])
    loss = one.network(input_ids=ids, labels=ids).loss.detach()
    assert float(one.nats(ids)[0, 1:].mean()) == pytest.approx(float(loss), rel=1e-5)
    assert one.about["kind"] == "transformers"
    assert len(one.about["weights"]) == 64


def test_quality_prints_every_definition_variety_and_its_record(folder, capsys):
    arguments = ["quality", folder / "samples.jsonl", "--judge", folder / "ar", "--json", "--definition", "mean"]
    assert main([str(one) for one in arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["definition"] == "mean"
    assert found["generative_perplexity"] == found["definitions"]["mean"]["perplexity"]
    assert found["samples"] == 4
    assert found["empty_samples"] == 2
    assert found["record"]["judge"]["objective"] == "ar"
    assert found["record"]["model"] is None
    one = judge(str(folder / "ar"))
    own = [float(np.exp(judged_nats(one, [np.array(one.encode(text))])[0][1:12].mean())) for text in ("abab. cab",)]
    assert own[0] == pytest.approx(
        quality.perplexity(quality.read_by_judge(one, [["abab. cab"], ["a"]]), "mean").perplexity, rel=1e-5
    )


def test_the_tokenizer_of_samples_may_be_that_of_a_shipped_model(tmp_path, capsys):
    tokenizer = load("stories").text_tokenizer()
    ids = [*tokenizer.encode("Once upon a time."), tokenizer.eos, *tokenizer.encode("The end.")]
    (tmp_path / "samples.jsonl").write_text(2 * (json.dumps({"text": "?", "tokens": ids}) + "\n"))
    assert main(["quality", str(tmp_path / "samples.jsonl"), "--tokenizer", "stories", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] >= 12  # words of both documents, not of the text "?"


def test_quality_draws_from_a_model_and_says_what_it_took(folder, capsys):
    arguments = ["quality", folder / "mdlm", "--judge", folder / "ar", "--n", 3, "--train", folder / "samples.jsonl"]
    assert main([str(one) for one in arguments]) == 0
    said = capsys.readouterr().out
    assert "gen. perplexity, pooled" in said
    assert "first-hitting: 12 forward passes" in said
    assert "longest copy" in said


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["{root}/samples.jsonl", "--judge", "{root}/mdlm"], "left to right"),
        (["{root}/samples.jsonl", "--judge", "{root}/none.gguf"], "no file"),
        (["{root}/samples.jsonl", "--judge", "{root}/nowhere"], "cannot be loaded"),
        (["{root}/samples.jsonl", "--key", "txet"], "txet"),
        (["{root}/one.jsonl"], "at least 2"),
        (["{root}/blank.jsonl"], "empty"),
        (["{root}/samples.jsonl", "--tokenizer", "{root}/ar"], "no list of tokens"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_words(folder, capsys, arguments, words):
    (folder / "one.jsonl").write_text('{"text": "abc"}\n')
    (folder / "blank.jsonl").write_text('{"text": ""}\n{"text": " "}\n')
    assert main(["quality", *(one.format(root=folder) for one in arguments)]) == 2
    assert words in capsys.readouterr().err


def test_an_error_bar_needs_two_samples():
    with pytest.raises(UserError, match="at least 2"):
        quality.perplexities(quality.read_by_judge(Counting(), [["abc"]]))
