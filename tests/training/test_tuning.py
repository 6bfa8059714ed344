"""Fine-tuning: every epoch has each text once, micro-batches change nothing, the head is the same on any network."""

import pytest
import torch

from tiny import checkpoint
from unmask.errors import UserError
from unmask.model.answer import Answer
from unmask.model.checkpoint import load
from unmask.model.reading import Reading
from unmask.text.tokens import vocabulary
from unmask.training.loop import UpdatePlan
from unmask.training.tuning import Lesson, Tune, Tuning, begin_tuning, chosen_texts, tune

pytestmark = pytest.mark.slow
ANSWER = Answer(("no", "yes"))


@pytest.fixture
def model(tmp_path):
    return load(checkpoint(tmp_path / "model"))


def asked_for(how, **more):
    return Tuning(tune=how, device="cpu", dtype="float32", **more)


def begun(model, how, *, seed=1, answer=ANSWER, updates=4, **more):
    return begin_tuning(model, answer, asked_for(how, **more), UpdatePlan(how.optim(updates), seed, 0, updates))


def lesson(state, n=10):
    rows, _ = state.learner.encode(["ab"[i % 2] * (1 + i // 2) for i in range(n)])
    return Lesson(rows, torch.tensor([float(i % 2) for i in range(n)]))


def losses_of(state, some, how, *, seed=1, stop=4, **more):
    return [one.loss for one in tune(state, some, asked_for(how, **more), UpdatePlan(how.optim(stop), seed, 0, stop))]


def after(state, how, *, stop=4, **more):
    losses_of(state, lesson(state), how, stop=stop, **more)
    return {name: p.detach().clone() for name, p in state.learner.named_parameters()}


def test_an_epoch_has_each_text_once_in_an_order_of_its_own():
    how = Tune(batch=4)
    epochs = [[i for step in range(3) for i in chosen_texts(3 * e + step, 10, how, seed=1)] for e in range(2)]
    assert [sorted(one) for one in epochs] == [list(range(10))] * 2
    assert epochs[0] != epochs[1]
    assert how.updates(10) == 9
    assert Tune(batch=4, steps=5).updates(10) == 5


def test_micro_batches_give_the_same_weights(model):
    how, parts = Tune(batch=4, dropout=0.0), Tune(batch=4, dropout=0.0, micro=3)
    one, other = (after(begun(model, some), some) for some in (how, parts))
    for name, weight in one.items():
        torch.testing.assert_close(other[name], weight, rtol=1e-4, atol=1e-6)


def test_augmentation_is_the_same_in_training_whatever_strands_are_read_in_answers(tmp_path):
    dna, how = load(checkpoint(tmp_path / "dna", tokenizer=vocabulary.dna())), Tune(batch=4, dropout=0.0)
    found = []
    for strands in ("augment", "augment-one", "one"):
        reading = Reading(strands=strands)
        state = begun(dna, how, reading=reading, updates=3)
        rows, _ = state.learner.encode(["AC", "AAG", "CAAA", "GGTA", "TC", "CCA"])
        some = Lesson(rows, torch.tensor([0.0, 1, 0, 1, 0, 1]))
        found.append(losses_of(state, some, how, stop=3))
    assert found[0] == found[1] != found[2]


def test_the_whole_network_is_trained_and_the_given_one_is_left_alone(model):
    how = Tune(batch=4)
    before = {name: p.clone() for name, p in model.network.named_parameters()}
    tuner = begun(model, how)
    assert all(torch.equal(p, before[name]) for name, p in tuner.learner.backbone.named_parameters())
    found = after(tuner, how)
    moved = [name for name, p in before.items() if not torch.equal(found[f"backbone.{name}"], p)]
    assert any("vocab_embed" in name for name in moved)
    assert any("blocks.0" in name for name in moved)
    assert all(torch.equal(p, before[name]) for name, p in model.network.named_parameters())


def test_scratch_begins_with_other_weights_and_the_same_head(model):
    given, new = begun(model, Tune()), begun(model, Tune(scratch=True))
    a, b = (dict(one.learner.named_parameters()) for one in (given, new))
    assert torch.equal(a["parts.head.weight"], b["parts.head.weight"])
    assert not torch.equal(a["backbone.vocab_embed.embedding"], b["backbone.vocab_embed.embedding"])
    assert not torch.equal(begun(model, Tune(), seed=2).learner.head.weight, a["parts.head.weight"])


@pytest.mark.parametrize("answer", [ANSWER, Answer((), 0.5, 0.5)])
def test_the_loss_falls(model, answer):
    how = Tune(batch=10, lr=3e-3, dropout=0.0)
    tuner = begun(model, how, answer=answer, updates=40)
    losses = losses_of(tuner, lesson(tuner), how, stop=40)
    assert losses[-1] < losses[0] / 3


@pytest.mark.parametrize(
    "wrong", [{"batch": 0}, {"lr": -1.0}, {"warmup": 2.0}, {"dropout": 1.0}, {"epochs": 0.0}, {"clip": -1.0}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        Tune(**wrong)
