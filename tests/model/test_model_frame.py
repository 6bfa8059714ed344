"""An encoder's special tokens are given wherever they stand: never hidden, never counted, never drawn.

Its mask is in the middle of the vocabulary, so nothing may take the last id for it.
"""

import math
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch

from model.encoders import CLS, MASK, PAD, SEP, SPECIAL, small_bert
from unmask import infill, sample
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.objective import OBJECTIVES
from unmask.evaluation.likelihood import measure
from unmask.evaluation.likelihood.estimators import estimator
from unmask.evaluation.likelihood.passes import evaluate, summary
from unmask.model.denoiser import Denoiser
from unmask.model.passes.whole import logits_at
from unmask.sampling.fitting import samplers_for
from unmask.sampling.policy import POLICIES
from unmask.sampling.score import log_likelihood
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.packed import pack_corpus
from unmask.text.layout import cut
from unmask.text.layouts.framed import FramedLayout
from unmask.text.stretch import Document
from unmask.training.noise import draw

TEXT = "the old man saw the big dog and the cat ."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    found = small_bert(tmp_path_factory.mktemp("encoder"))
    assert (found.mask, *found.layout.marks[:3]) == (MASK, CLS, SEP, PAD)
    return found


@pytest.fixture
def shown(model, monkeypatch):
    """Every input of the network during a test."""
    seen, run = [], model.network.run

    def watched(p):
        seen.append(p.x.clone())
        return run(p)

    monkeypatch.setattr(model.network, "run", watched)
    return seen


def check_frame(rows, *, last: bool = True):
    """Every row that the network saw stands between [CLS] and [SEP]."""
    assert rows
    for x in rows:
        assert (x[:, 0] == CLS).all()
        assert not last or (x[:, -1] == SEP).all()


def corpus(folder, tokenizer, documents):
    from unmask.text.corpus.documents import FileLayout
    from unmask.text.corpus.prepare import prepare
    from unmask.text.corpus.sources import gather

    (folder / "text.txt").write_text("\n".join(documents))
    with gather(str(folder / "text.txt")) as sources:
        list(prepare(sources, tokenizer, folder / "data", layout=FileLayout("line"), workers=1))
    return Corpus.open(folder / "data")


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("sedd", "mlm", "d3pm")]


@pytest.mark.parametrize("way", ["wrap", "padded"])
@pytest.mark.parametrize("objective", ["mdlm", *SLOW])
def test_training_hides_and_counts_text_alone(way, objective, model, shown, tmp_path):
    documents = [TEXT, "the cat sat on the mat .", "it was red"]
    whole = pack_corpus(corpus(tmp_path, model.tokenizer, documents), 10, FramedLayout.packed(way, training=True))
    rows = whole.rows(range(len(whole)))
    frozen, lengths = rows.frozen, rows.lengths
    frame = torch.isin(rows.tokens, torch.tensor([PAD, CLS, SEP]))
    assert torch.equal(frozen, frame)
    assert torch.equal(rows.real, ~frame)
    assert (lengths is None) == (way == "wrap")
    if lengths is not None:
        assert lengths.tolist() == [10, 9, 5]
    kind = OBJECTIVES.entry(objective).make()
    denoiser = Denoiser(model.network, kind)
    for step in range(20):
        noise = draw(*rows.tokens.shape, seed=3, step=step, use=0)
        nats, _ = denoiser(rows.tokens, noise, mask=MASK, frozen=frozen, lengths=lengths)
        assert not nats.loss[frame].any()
        assert not nats.bound[frame].any()
    assert len(shown) >= 20
    assert all(torch.equal(x[frame], rows.tokens[frame]) for x in shown)
    assert any((x == MASK).any() for x in shown)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["count", "time", "steps", "order", "duel", "pseudo"])
def test_every_estimator_gives_the_frame_and_counts_the_text(name, model, shown):
    documents = [Document(np.array(model.tokenizer.encode(text)), len(text)) for text in (TEXT, "the cat ran")]
    for way, length in (("rows", 9), ("stream", 9), ("wrap", 6)):
        passages, dropped = cut(documents, model.layout.evaluated(way), length=length)
        total = sum(len(document.tokens) for document in documents)
        assert sum(row.scored for row in passages) == total - dropped
        assert max(len(row.tokens) for row in passages) <= length
        if way != "wrap":
            assert dropped == 0
        how = estimator(name, objective="mdlm", steps=5)
        *_, tally = islice(evaluate(partial(logits_at, model.network), passages, how, mask=MASK), 9)
        for row, nats in zip(passages, tally.each, strict=True):
            marks = np.isin(row.tokens, [CLS, SEP, PAD])
            assert not nats[marks].any()
            assert nats[~marks].all()
        assert math.isfinite(summary(tally).nats_per_token)
    check_frame(shown)


@pytest.mark.slow
def test_the_default_measurement_is_a_bound_over_framed_documents(model, shown):
    from unmask.text.corpus.tokenized import TokenizedText

    documents = [Document(np.array(model.tokenizer.encode(TEXT)), len(TEXT))] * 3
    work = measure.measurement_of(model, TokenizedText("x", documents, ""), measure.How(passes=2))
    *_, tally = measure.run_measurement(work)
    found = measure.result(work, tally, seconds=1.0)
    assert (found["estimator"], work.how.pack) == ("count", "rows")
    assert found["perplexity"] > 1
    assert found["tokens"] == 3 * len(model.tokenizer.encode(TEXT))
    check_frame(shown)


MASKED = samplers_for(MDLM())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:this model was trained as a masked")
@pytest.mark.parametrize("sampler", MASKED)
def test_no_sampler_draws_or_changes_a_special_token(sampler, model, shown):
    steps = None if POLICIES[sampler].budget is None else 4
    draw_texts = partial(sample, model, n=6, sampler=sampler, steps=steps, seed=2)
    for found in [*draw_texts(length=12), *draw_texts(length=14, prompt="the old man", temperature=2.0)]:
        inside = found.tokens[1:-1]
        assert (found.tokens[0], found.tokens[-1]) == (CLS, SEP)
        assert not SPECIAL & set(inside)
        assert all(1 <= event.position < len(found.tokens) - 1 for event in found.trace)
    check_frame(shown)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:this model was trained as a masked")
def test_the_end_is_drawn_only_where_it_is_asked_for_as_a_stop(model):
    stopped = sample(model, n=24, length=20, until="[SEP]", seed=1, temperature=2.0)
    assert any(len(found.tokens) < 20 for found in stopped)
    assert all(found.tokens[-1] == SEP and SEP not in found.tokens[:-1] for found in stopped)
    assert all(CLS not in found.tokens[1:] for found in stopped)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:this model was trained as a masked")
@pytest.mark.parametrize("options", [{}, {"exact_length": True}, {"reject": 200}])
def test_patterns_stand_inside_the_frame(options, model, shown):
    pattern = "(the|a) (cat|dog) sat" if "reject" not in options else ".*"
    length = 5 if options.get("exact_length") else 9
    for found in sample(model, n=4, length=length, pattern=pattern, seed=1, **options):
        assert found.tokens[0] == CLS
        assert found.tokens[-1] == SEP
        assert CLS not in found.tokens[1:]
        assert "reject" in options or found.text in {f"{a} {b} sat" for a in ("the", "a") for b in ("cat", "dog")}
    check_frame(shown)
    if not options:
        assert max(x.shape[1] for x in shown) == 5  # not longer than the longest match


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:this model was trained as a masked")
def test_infilling_and_guidance_keep_the_frame_in_sight(model, shown):
    for found in infill(model, "the ___ sat on the [1] .", n=3, longest=3, passes=4, seed=1):
        assert (found.tokens[0], found.tokens[-1]) == (CLS, SEP)
        assert not SPECIAL & set(found.tokens[1:-1])
        assert found.text.startswith("the")
    for found in sample(model, n=2, length=10, prompt="the old man", guidance=2.0):
        assert not SPECIAL & set(found.tokens[1:-1])
    check_frame(shown)
    row = model.layout.part(model.tokenizer.encode(TEXT))
    tokens, frozen = torch.from_numpy(row.tokens), torch.from_numpy(row.frozen)
    assert log_likelihood(model, tokens, frozen, passes=4).nats < 0
    check_frame(shown)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:this model was trained as a masked")
def test_given_words_stay_as_they_were_written_and_a_hole_after_a_space_begins_a_word(model):
    pieces, inside = model.tokenizer.pieces, 0
    for found in infill(model, "The BIG [1] sat[1] on the [2].", n=40, temperature=3.0, seed=1):
        a, b, c = found.blanks
        assert found.text == f"The BIG {a} sat{b} on the {c}."
        first, joined, second = (pieces[found.tokens[at]] for at in (3, 5, 8))
        assert not first.startswith("##")
        assert not second.startswith("##")
        assert b == (joined[2:] if joined.startswith("##") else b)
        inside += joined.startswith("##")
    assert inside  # without a space a hole may go on with the word
    after = [sample(model, n=120, length=8, prompt=prompt, temperature=3.0) for prompt in ("the man ", "the man")]
    begun, joined = ({pieces[found.tokens[3]][:2] == "##" for found in some} for some in after)
    assert (begun, joined) == ({False}, {False, True})


@pytest.mark.slow
def test_a_masked_language_model_is_said_to_be_a_poor_generator(model):
    with pytest.warns(UserWarning, match=r"never to write whole texts.*from 78 to 35.*unmask train --init"):
        sample(model, n=1, length=6)
