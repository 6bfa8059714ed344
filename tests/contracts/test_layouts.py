"""One text is one row, with the same ids and roles, wherever it is trained on, measured, drawn or classified."""

import json
from importlib.util import find_spec

import numpy as np
import pytest

import toys.layout  # noqa: F401
from contracts.members import LENGTH, model_of, network_of, spec_of
from model.encoders import small_bert
from unmask.errors import UserError
from unmask.evaluation.likelihood import measure
from unmask.evaluation.likelihood.measure import How
from unmask.model.answer import Answer
from unmask.model.checkpoint import load, save
from unmask.model.predictor import Predictor
from unmask.sampling.tasks.continuation import Continue
from unmask.sampling.tasks.infill import Infill
from unmask.serving.http.requests import Controls, Requests
from unmask.serving.http.scoring import text_row
from unmask.serving.limits import Limits
from unmask.settings import describe_settings
from unmask.text.corpus.batches import Batches, in_order
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.documents import FileLayout as Documents
from unmask.text.corpus.packed import Packed
from unmask.text.corpus.prepare import prepare
from unmask.text.corpus.sources import gather
from unmask.text.corpus.tokenized import tokenize
from unmask.text.layout import LAYOUTS
from unmask.text.prompt.template import Blank, Template
from unmask.text.row import Role, Row
from unmask.text.tokens import vocabulary

WORDS = {"encoder": ("the old ", "man saw it "), "dna": ("ACNG", "TANCA")}
PLAIN = [name for name in LAYOUTS if name != "framed"]
CASES = [(kind, name) for kind in ("mdlm", "ar", "block") for name in PLAIN]
CASES += [("encoder", "padded"), ("encoder", "wrap"), ("dna", "windows"), ("dna", "stream"), ("dna", "rows")]


def made(folder, kind, pack):
    """A model of a kind that was trained with a packing."""
    if kind == "encoder":
        bert = small_bert(folder)
        about = {"mask": bert.mask, "objective": "mlm", "tokenizer": bert.tokenizer}
        return load(save(folder / "own", bert.network, settings={"text": {"pack": pack}}, **about))
    if kind == "dna":
        dna = vocabulary.dna()
        network = network_of(spec_of("transformer", vocab=dna.size))
        about = {"mask": dna.mask, "tokenizer": dna, "settings": {"text": {"pack": pack}}}
        return load(save(folder / "own", network, **about))
    bare = "{% for message in messages %}{{ message.content }}{% endfor %}"  # which adds nothing to a text
    return model_of(folder / "own", kind, text={"pack": pack, "template": bare})


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request, tmp_path_factory):
    kind, pack = request.param
    first, rest = WORDS.get(kind, ("abc", " de"))
    folder = tmp_path_factory.mktemp("layout")
    model = made(folder, kind, pack)
    (folder / "text.txt").write_text(first + rest)
    with gather(str(folder / "text.txt")) as sources:
        list(prepare(sources, model.tokenizer, folder / "data", layout=Documents("file"), workers=1))
    return model, first, rest, Corpus.open(folder / "data")


def pairs(row: Row) -> list[tuple[int, int]]:
    return list(zip(row.tokens.tolist(), row.roles.tolist(), strict=True))


def trained(corpus: Corpus, model) -> Packed:
    """The corpus as one row: as long as the layout allows."""
    for length in range(LENGTH, 2, -1):
        try:
            return Packed(corpus, length, model.layout)
        except UserError:  # not one row
            continue
    raise AssertionError("no length fits")


def evaluated(model, text, **how) -> list[Row]:
    return measure.measurement_of(model, tokenize("x", [text], model.tokenizer), How(**how)).passages


def scored(model, text) -> Row:
    return text_row(Requests(model, Limits(), Controls(model, Limits())), text)


def test_batches_and_validation_have_the_rows_of_the_layout(case):
    model, _, _, corpus = case
    packed = trained(corpus, model)
    whole = packed.rows([0])
    (held_out,) = in_order(packed, 4)
    for other in (held_out, Batches(packed, 1).at(5)):
        assert other.tokens.equal(whole.tokens)
        drawn = (other.roles == Role.PAD) & (whole.roles == Role.END)  # a room of another size
        assert not drawn.any() or model.layout.draws_room
        assert other.roles[~drawn].equal(whole.roles[~drawn])


def test_evaluation_has_the_row_of_training(case):
    """But for a token before the first one, where the objective predicts none, and padding that is not read."""
    model, first, rest, corpus = case
    packed = trained(corpus, model)
    rows = packed.rows([0])
    read = [one for one in zip(rows.tokens[0].tolist(), rows.roles[0].tolist(), strict=True) if one[1] != Role.PAD]
    lead = len(model.layout.marks.lead) if model.layout.continuous else 0
    (row,) = evaluated(model, first + rest, length=packed.length + lead)
    found = pairs(row)
    if model.objective.leads:
        assert found[0][1] in (Role.MARK, Role.GIVEN)
        found, read = found[-len(read) :], [one for one in read if one[1] != Role.END]
        found = found[-len(read) :]
        found, read = [(found[0][0], Role.GIVEN), *found[1:]], [(read[0][0], Role.GIVEN), *read[1:]]
    assert found == read


def test_a_text_is_scored_alike_by_evaluate_the_server_and_the_harness(case):
    """In an open layout a text has no end of its own, as `evaluate --no-separate` measures it."""
    model, first, rest, _ = case
    layout = model.layout
    pack = "auto" if layout.whole or layout == layout.by_document() else "rows"
    (row,) = evaluated(model, first + rest, pack=pack, separate=layout.closed)
    others = [scored(model, first + rest)]
    if find_spec("lm_eval"):
        from unmask.serving.harness import Harness

        others += Harness(str(model.folder)).text_rows(first + rest)
    for other in others:
        assert pairs(other) == pairs(row)
        assert (other.scored, other.bytes) == (row.scored, row.bytes)


def test_an_answer_is_the_end_of_the_row_of_its_text(case):
    model, first, rest, _ = case
    (row,) = measure.answers(model, [(first, rest)], How(), data={"name": "x"}).passages
    if find_spec("lm_eval"):
        from unmask.serving.harness import Harness

        context, space = first.rstrip(), first[len(first.rstrip()) :]
        (same,) = measure.answers(model, [(context, space + rest)], How(), data={"name": "x"}).passages
        assert pairs(Harness(str(model.folder)).row(first, rest)) == pairs(same)
    asked = model.layout.asked(model.tokenizer.encode(first))
    given = len(asked) + len(model.layout.opening(document=model.layout.closed))
    assert row.frozen[:given].all()
    answered = len(row.tokens) - given
    if model.layout.answers:  # the text before it is another turn
        alone = scored(model, rest)
        lead = int(alone.frozen[0])
        assert pairs(row)[given:] == pairs(alone)[lead : lead + answered]
        return
    whole, marks = scored(model, first + rest), len(model.layout.closing())
    assert row.tokens[-answered:].tolist() == whole.tokens[-answered:].tolist()
    assert row.roles[-answered:][: answered - marks].tolist() == whole.roles[-answered:][: answered - marks].tolist()


def test_a_prompt_begins_the_row_of_its_text_and_only_the_blanks_are_drawn(case):
    model, first, rest, _ = case
    layout = model.layout
    row = Continue(first.rstrip(), new=4).row(model)
    ids = layout.asked(model.tokenizer.encode(first.rstrip()))
    opening = layout.opening(document=layout.documents)
    assert row.tokens == [*opening, *ids, *[model.mask] * 4, *layout.closing()]
    roles = [Role.MARK] * len(opening) + [Role.GIVEN] * len(ids) + [Role.FREE] * 4
    if ids[-1] == model.tokenizer.eos:  # the end of what is given
        roles[row.start - 1] = Role.MARK
    assert list(row.roles) == [*roles, *[Role.MARK] * len(layout.closing())]
    if layout.closed and not layout.answers:
        assert row.tokens[: row.start] == scored(model, first + rest).tokens.tolist()[: row.start]


def test_a_template_is_the_row_of_its_text_with_blanks(case):
    model, first, rest, _ = case
    if not model.objective.facts.infills:
        return
    ids = model.tokenizer.encode(rest)
    row = Infill(model, Template((Blank(len(ids), len(ids)), first)), constrained=True).row((len(ids),))
    whole = scored(model, rest + first)
    lead = 0 if model.layout.closed else len(model.layout.opening())
    blank = np.array(row.tokens) == model.mask
    assert blank.sum() == len(ids)
    assert [id for id, hidden in zip(row.tokens, blank, strict=True) if not hidden] == [
        id for id, hidden in zip(whole.tokens.tolist()[lead:], blank, strict=not model.layout.answers) if not hidden
    ]
    assert (np.array(row.roles)[blank] == Role.FREE).all()
    assert not np.isin(np.array(row.roles)[~blank], (Role.FREE, Role.END)).any()


def test_a_classified_text_has_its_ids_between_the_marks(case):
    model, first, rest, _ = case
    predictor = Predictor(model, Answer(labels=("no", "yes")))
    (row,), _ = predictor.encode([first + rest])
    tokens, second = predictor.line(row, False)
    before, after = predictor.marks
    assert tokens == [*before, *model.tokenizer.encode(first + rest), *after]
    assert second == len(tokens)


def test_a_checkpoint_stores_its_layout_and_an_older_one_has_that_of_its_settings(case):
    model, *_ = case
    assert model.trained_layout is not None
    assert describe_settings(model.trained_layout) == describe_settings(model.layout)
    old = save(
        model.folder.parent / "old",
        model.network,
        mask=model.mask,
        objective=model.objective,
        tokenizer=model.tokenizer,
        parts=model.parts,
        state=model.state,
    )
    note = (old / "unmask.json").read_text()
    assert '"layout"' not in note
    settings = json.dumps(dict(model.settings))
    (old / "unmask.json").write_text(note.replace('"settings": {}', f'"settings": {settings}'))
    assert load(old).layout == model.layout
