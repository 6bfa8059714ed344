"""A predictor: what a text gets depends on it alone, on either strand, saved and loaded; what is read and cut."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from contracts.members import LENGTH, LETTERS, NAMES, network_of, spec_of
from tiny import checkpoint
from unmask.errors import UserError
from unmask.files import appearing
from unmask.model.answer import Answer
from unmask.model.checkpoint import load
from unmask.model.model import Model
from unmask.model.passes.whole import hidden_states
from unmask.model.passing import Causal, Full
from unmask.model.predictor import Predictor, load_guide, write_predictor
from unmask.model.reading import Encoded, Reading, Trained, shorten
from unmask.text.corpus.examples import Columns
from unmask.text.tokens.vocabulary import dna

ANSWER = Answer(("bad", "good", "so so"))
TEXTS = ["abc", "abcdefgh", "a", "hgf ed", "bb.", "ab"]
BASES = dna()


def builds(name: str, causal: bool) -> bool:
    """Whether a backbone can see both sides, or only the past: some refuse one of the two."""
    try:
        spec = spec_of(name, causal=causal)
    except UserError:
        return False
    return spec.causal == causal and (Causal if causal else Full) in spec.abilities.sees


CASES = [(name, causal) for name in NAMES["backbones"] for causal in (False, True) if builds(name, causal)]


def predictor(
    name="transformer", *, causal=False, tokenizer=LETTERS, answer=ANSWER, scale=0.6, **reading
) -> Predictor:
    """With random weights that are not small, head included."""
    spec = spec_of(name, causal=causal, vocab=tokenizer.size)
    network = network_of(spec, scale=scale)
    found = Predictor(Model(network, tokenizer.mask, tokenizer=tokenizer), answer, Reading(**reading))
    torch.nn.init.normal_(found.head.weight, generator=torch.Generator().manual_seed(3))
    return found.eval()


def answers(found, texts):
    return found.answers(found.encode(texts)[0], batch=3)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_text_gets_the_same_answer_bit_for_bit_wherever_it_is_in_the_data():
    found = predictor()
    whole, order = answers(found, TEXTS), [3, 0, 5, 1, 4, 2]
    assert torch.equal(answers(found, [TEXTS[i] for i in order]), whole[order])
    batches = []  # the same texts are read together: larger networks round differently in other company
    for texts in (TEXTS, [TEXTS[i] for i in order]):
        batches.append([[texts[i] for i in some] for some, _ in found.outputs(found.encode(texts)[0], batch=3)])
    assert batches[0] == batches[1]
    assert len({tuple(one) for one in whole.tolist()}) == len(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "causal"), CASES)
def test_padding_changes_nothing_on_any_network_and_every_letter_counts(name, causal):
    found = predictor(name, causal=causal)
    alone = torch.cat([answers(found, [text]) for text in TEXTS])
    close(alone, answers(found, TEXTS))
    first = answers(found, ["abcd"])
    for other in ("bbcd", "abad", "abca"):
        assert (answers(found, [other]) - first).abs().max() > 1e-6, other


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["mean", "last", "padded", "auto"])
def test_every_pooling_is_what_it_says(pool):
    found = predictor(pool=pool)
    rows, _ = found.encode(["abc", "abcdef"])
    batch = found.batch(rows)
    with torch.no_grad():
        vectors = found.vectors(batch)
        hidden = hidden_states(found.backbone, batch.tokens, lengths=batch.lengths)
    lengths = [5, 8]  # with bos and eos
    if pool == "padded":
        assert batch.tokens.shape == (2, LENGTH)
        assert batch.lengths is None
        assert batch.tokens[0, : LENGTH - 5].tolist() == [LETTERS.pad] * (LENGTH - 5)
        close(vectors, hidden.mean(1))
    else:
        assert batch.lengths.tolist() == lengths
        some = [hidden[i, n - 1] if pool == "last" else hidden[i, :n].mean(0) for i, n in enumerate(lengths)]
        close(vectors, torch.stack(some))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["caduceus", "mamba", "transformer"])
def test_both_strands_of_dna_get_the_same_answer(name):
    texts, other = ["ACGTT", "GATTACA", "N"], ["AACGT", "TGTAATC", "N"]
    found = predictor(name, causal=name == "mamba", tokenizer=BASES)
    assert found.reading.strands == "augment"
    close(answers(found, texts), answers(found, other))
    single = predictor(name, causal=name == "mamba", tokenizer=BASES, strands="one")
    assert (answers(single, texts[:2]) - answers(single, other[:2])).abs().max() > 1e-3


@pytest.mark.slow
def test_an_equivariant_network_needs_no_second_strand():
    spec = replace(spec_of("caduceus", vocab=BASES.size), equivariant=True)
    found = Predictor(Model(network_of(spec), BASES.mask, tokenizer=BASES), ANSWER).eval()
    assert found.reading.strands == "one"
    close(answers(found, ["ACGTT", "GATTACA"]), answers(found, ["AACGT", "TGTAATC"]))
    assert (answers(found, ["ACGTT"]) - answers(found, ["ACGTA"])).abs().max() > 1e-4


@pytest.mark.slow
def test_a_network_that_reads_forward_sees_the_last_base():
    found = predictor("mamba", causal=True, tokenizer=BASES, strands="one")
    assert found.batch(found.encode(["ACG"])[0]).tokens.tolist() == [[0, 1, 2, BASES.eos]]
    assert (answers(found, ["ACGT"]) - answers(found, ["ACGA"])).abs().max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["caduceus", "mamba", "hyena"])
def test_published_classifiers_average_the_strands_of_caduceus_only(name):
    found = predictor(name, causal=name != "caduceus", tokenizer=BASES, strands="published")
    assert found.reading.strands == ("augment" if name == "caduceus" else "augment-one")
    single = predictor(name, causal=name != "caduceus", tokenizer=BASES, strands="one")
    texts = ["ACGTT", "GATTACA"]
    assert torch.equal(answers(found, texts), answers(single, texts)) == (name != "caduceus")


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["auto", "padded"])
def test_the_token_after_the_text_of_a_causal_network_is_not_counted_in_its_length(pool):
    found = predictor("mamba", causal=True, tokenizer=BASES, length=6, pool=pool)
    rows, cut = found.encode(["ACGTAC", "ACGTACG"])
    assert cut == 1
    assert [row.size for row in rows] == [6, 6]
    assert found.batch(rows).tokens.tolist() == [[0, 1, 2, 3, 0, 1, BASES.eos]] * 2
    hyena = predictor("hyena", causal=True, tokenizer=BASES)  # its filters cover no more than a training row
    assert hyena.reading.length == LENGTH - 1
    assert len(answers(hyena, ["ACGT" * LENGTH])) == 1


@pytest.mark.slow
def test_a_pair_has_a_token_between_its_texts_and_is_cut_where_it_is_longer():
    found = predictor()
    rows, cut = found.encode([("abc", "de"), ("abcdefgh", "hg"), ("abcdefg", "abcdefg")])
    tokens, lengths, segments = found.batch(rows)
    bos = eos = LETTERS.eos
    a = LETTERS.encode
    assert cut == 2
    assert tokens[0, :8].tolist() == [bos, *a("abc"), eos, *a("de"), eos]
    assert segments[0, :8].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert tokens[1].tolist() == [bos, *a("abcdefg"), eos, *a("hg"), eos]
    assert rows[2] == Encoded(a("abcde"), a("abcd"))
    assert lengths.tolist() == [8, 12, 12]


@pytest.mark.slow
def test_no_more_is_read_than_a_network_has_positions():
    assert predictor("bert", length=40).reading.length == LENGTH
    assert predictor("transformer", length=40).reading.length == 40
    rows, cut = predictor("bert", length=40).encode(["a" * 30])
    assert cut == 1
    assert predictor("bert").answers(rows).shape == (1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("first, second, room, kept", [(5, 2, 4, (2, 2)), (1, 9, 4, (1, 3)), (3, 3, 5, (3, 2))])
def test_of_two_texts_the_longer_one_is_cut_first(first, second, room, kept):
    found = shorten(Encoded([1] * first, [2] * second), room)
    assert (len(found.first), len(found.second)) == kept


@pytest.mark.slow
def test_segments_reach_a_network_that_knows_them():
    if "bert" not in NAMES["backbones"]:
        pytest.skip("no BERT")
    found = predictor("bert")
    one = found.batch([Encoded([1, 2], [3, 4])])
    flat = one._replace(segments=torch.zeros_like(one.segments))
    with torch.no_grad():
        assert (found.judge(one) - found.judge(flat)).abs().max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("answer", [ANSWER, Answer((), 2.5, 1.5)])
def test_what_is_written_is_read_again_and_answers_alike(tmp_path, answer):
    model = load(checkpoint(tmp_path / "model"))
    found = Predictor(model, answer, Reading(length=9, pool="last")).eval()
    with appearing(tmp_path / "mood") as draft:
        write_predictor(draft, found, {"seed": 1})
    again = Predictor.load(tmp_path / "mood")
    assert again.reading == found.reading
    assert again.answer == answer
    assert torch.equal(answers(again, TEXTS), answers(found, TEXTS))
    said = again.predict(["abc"])[0]
    if answer.labels:
        assert said.label in answer.labels
        assert sum(said.probabilities.values()) == pytest.approx(1)
    else:
        assert said.label is None
        assert said.number == pytest.approx(answers(found, ["abc"]).item())
    load(tmp_path / "mood")  # a checkpoint like any other


def written(folder, found):
    with appearing(folder) as draft:
        write_predictor(draft, found, {})
    return folder


def test_single_texts_are_refused_by_a_classifier_of_pairs_and_the_reverse(tmp_path):
    model = load(checkpoint(tmp_path / "model"))
    columns = Columns("one", "other", "score")
    found = Predictor(model, ANSWER, trained=Trained(True, columns))
    again = Predictor.load(written(tmp_path / "pairs", found))
    assert again.trained == Trained(True, columns, 1)
    assert len(again.predict([("ab", "c")])) == 1
    with pytest.raises(UserError, match=r"trained on pairs of texts, and these are single .* --pair 'other'"):
        again.predict(["ab"])
    single = Predictor.load(written(tmp_path / "single", Predictor(model, ANSWER, trained=Trained(False))))
    assert len(single.predict(["ab"])) == 1
    with pytest.raises(UserError, match=r"trained on single texts, and these are pairs: give one text each"):
        single.predict([("ab", "c")])


def test_a_classifier_of_an_earlier_version_answers_both_with_one_token_between_the_texts(tmp_path):
    found = Predictor(load(checkpoint(tmp_path / "model")), ANSWER, trained=Trained(True, separators=2))
    assert found.line(Encoded([1], [2]), False)[0].count(found.tokenizer.eos) == 4  # bos is eos here
    note = written(tmp_path / "old", found) / "classify.json"
    said = json.loads(note.read_text())
    del said["texts"]
    note.write_text(json.dumps(said))
    again = Predictor.load(tmp_path / "old")
    assert again.trained.pairs is None
    assert again.line(Encoded([1], [2]), False)[0].count(found.tokenizer.eos) == 3
    assert len(again.predict(["ab"])) == len(again.predict([("ab", "c")])) == 1


def test_a_new_pooler_is_saved_and_the_head_is_the_same_with_every_pooling(tmp_path):
    heads = []
    for pool in ("auto", "mean", "first"):
        torch.manual_seed(3)
        network = network_of(spec_of("bert", vocab=LETTERS.size))
        torch.manual_seed(4)
        found = Predictor(Model(network, LETTERS.mask, tokenizer=LETTERS), ANSWER, Reading(pool=pool)).eval()
        heads.append(found.head.weight)
    assert all(torch.equal(head, heads[0]) for head in heads)
    hidden = hidden_states(found.backbone, found.batch(found.encode(["ab"])[0]).tokens)
    pooler = found.parts["pooler"]
    assert 0.005 < pooler.weight.std() < 0.05
    close(found.vectors(found.batch(found.encode(["ab"])[0])), torch.tanh(pooler(hidden[:, 0])))
    again = Predictor.load(written(tmp_path / "mood", found))
    assert torch.equal(again.parts["pooler"].weight, pooler.weight)
    assert torch.equal(answers(again, TEXTS), answers(found, TEXTS))


def test_the_first_token_is_pooled_for_encoders_only():
    with pytest.raises(UserError, match=r"--pool first reads the token before a text.* choose --pool mean"):
        predictor(pool="first")


@pytest.mark.slow
def test_a_head_that_was_changed_and_a_model_without_one_are_refused(tmp_path):
    checkpoint(tmp_path / "model")
    with pytest.raises(UserError, match=r"not fine-tuned for classification.*unmask classify"):
        Predictor.load(tmp_path / "model")
    with appearing(tmp_path / "mood") as draft:
        write_predictor(draft, Predictor(load(tmp_path / "model"), ANSWER), {})
    head = tmp_path / "mood" / "head.safetensors"
    head.write_bytes(head.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(UserError, match=r"head.safetensors is not the file that was saved"):
        Predictor.load(tmp_path / "mood")
    (tmp_path / "mood" / "classify.json").write_text("{}")
    with pytest.raises(UserError, match=r"cannot be read.*Tune it again"):
        Predictor.load(tmp_path / "mood")


@pytest.mark.slow
def test_what_cannot_be_read_is_refused():
    with pytest.raises(UserError, match=r"only DNA has two strands"):
        predictor(strands="both")
    with pytest.raises(UserError, match=r"a length of 2 leaves no room"):
        predictor(length=2).encode(["abc"])
    with pytest.raises(UserError, match=r"text 2 is empty"):
        predictor("caduceus", tokenizer=BASES).encode(["ACG", ""])
    with pytest.raises(UserError, match=r"some texts are pairs"):
        predictor().encode(["abc", ("a", "b")])
    with pytest.raises(UserError, match=r"line 3: the label 'great' was not in the training data: bad, good, so so"):
        ANSWER.target("great", "line 3")
    with pytest.raises(UserError, match=r"line 3: the label 'nan' is not a number"):
        Answer().target("nan", "line 3")
    assert predictor().encode([""])[0] == [Encoded([])]  # the frame is there


@pytest.mark.parametrize(
    "table, values, message",
    [
        ("reading", {"length": 10**9, "pool": "padded"}, r"length must be at most 16,384 tokens"),
        ("reading", {"length": 2**62}, r"length must be at most 16,384 tokens"),
        ("answer", {"labels": [""] * 1000}, r"labels must differ"),
        ("answer", {"labels": [str(i) for i in range(100_000)]}, r"does not fit 100000 outputs"),
        ("answer", {"spread": 0.0}, r"spread must be finite"),
        ("texts", {"separators": -3}, r"1 to 4 separators; saw -3"),
    ],
)
def test_what_a_strangers_note_says_is_bounded_before_memory_is_taken(tmp_path, monkeypatch, table, values, message):
    checkpoint(tmp_path / "model")
    folder = written(tmp_path / "mood", Predictor(load(tmp_path / "model"), ANSWER))
    note = json.loads((folder / "classify.json").read_text())
    note[table] |= values
    (folder / "classify.json").write_text(json.dumps(note))
    if table == "answer":
        monkeypatch.setattr(Predictor, "__init__", None)  # no head is made
    with pytest.raises(UserError, match=message):
        Predictor.load(folder)


EARLIER = Path(__file__).parent / "earlier"  # written before heads and text had one training loop


def test_a_classifier_and_a_guide_of_earlier_versions_give_the_same_answers():
    said = json.loads((EARLIER / "answers.json").read_text())
    mood = Predictor.load(EARLIER / "mood").predict(said["texts"])
    assert [one.probabilities["good"] for one in mood] == pytest.approx(said["mood"], abs=1e-6)
    model = load(EARLIER / "mood")
    guide = load_guide(EARLIER / "guide", model)
    batch = guide.batch([Encoded(model.tokenizer.encode(text)) for text in said["texts"]])
    tokens = batch.tokens.where(torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None], model.mask)
    found = guide.log_probs(guide.table[tokens], torch.linspace(0, 1, 5), lengths=batch.lengths)
    torch.testing.assert_close(found, torch.tensor(said["guide"]), rtol=0, atol=1e-5)
    assert guide.answer.labels == ("bad", "good")


def test_texts_are_read_whole_up_to_four_times_the_length_of_the_pretraining():
    found = predictor()
    own, marks = found.model.spec.length, found.marks_around
    assert found.length_for(3) == own
    assert found.length_for(own + 1) == own + 1 + marks
    assert found.length_for(100 * own) == 4 * own
    assert predictor(length=5).length_for(100) == 5
