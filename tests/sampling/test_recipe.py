"""Default sampling settings: the model's hold, an option replaces only itself, and a sampler may be an object."""

import re
from dataclasses import dataclass, replace

import pytest

import tiny
import unmask
from unmask.diffusion.schedule import Cosine, LogLinear, Schedule
from unmask.errors import UserError
from unmask.registry import derived, spell_component
from unmask.sampling.policies.confidence import Looking
from unmask.sampling.policies.planned import FirstHitting, Groups
from unmask.sampling.policy import policy_of
from unmask.sampling.recipe import (
    DEFAULTS,
    PLAIN,
    Recipe,
    check_length,
    method_for,
    preview_recipe,
    recipe_record,
    with_defaults,
)
from unmask.sampling.tasks.continuation import Sample, generate
from unmask.text.tokens import vocabulary

STORED = {"sampler": "entropy", "temperature": 0.7, "top_p": 0.5, "top_k": 9, "no_repeat": 4}
OTHERS = {"sampler": "first-hitting", "steps": 3, "temperature": 0.9, "top_p": 0.8, "top_k": 7, "no_repeat": 3}


@pytest.fixture
def told(model):
    return model.with_sampling(**STORED)


def test_what_is_not_given_is_the_models_default_and_else_plain(model, told):
    assert {name: getattr(with_defaults(told, Recipe()), name) for name in DEFAULTS} == {**STORED, "steps": None}
    plain = {"sampler": "first-hitting", "steps": None, **PLAIN}
    assert {name: getattr(with_defaults(model, Recipe()), name) for name in DEFAULTS} == plain
    (own,) = unmask.sample(told, seed=3)
    (asked,) = unmask.sample(model, seed=3, **STORED)
    assert (own.text, own.sampler, own.law) == (asked.text, asked.sampler, asked.law)


@pytest.mark.parametrize("name", DEFAULTS)
def test_an_option_replaces_only_itself(told, name):
    found = with_defaults(told, Recipe(**{name: OTHERS[name]}))
    assert {one: getattr(found, one) for one in DEFAULTS} == {"steps": None, **STORED, name: OTHERS[name]}


@pytest.mark.parametrize(("name", "value"), [*PLAIN.items()])
def test_the_plain_value_can_be_asked_for(told, name, value):
    law = method_for(told, Recipe(**{name: value})).law
    assert name.replace("_", "-") not in law
    assert all(other.replace("_", "-") in law for other in PLAIN if other != name)


def test_plain_ignores_the_models_defaults_and_keeps_what_is_given(model, told):
    assert method_for(told, Recipe(plain=True)).law == "exact"
    assert method_for(told, Recipe(plain=True, top_p=0.9)).law == "exact, with top-p 0.9"
    assert unmask.sample(told, plain=True, seed=2)[0].tokens == unmask.sample(model, seed=2)[0].tokens


def test_a_stored_number_of_steps_belongs_to_the_stored_sampler(model):
    grouped = model.with_sampling(sampler="groups", steps=3)
    assert method_for(grouped, Recipe()).policy == policy_of("groups", steps=3)
    assert method_for(grouped, Recipe(steps=5)).policy == policy_of("groups", steps=5)
    assert method_for(grouped, Recipe(sampler="first-hitting")).policy == FirstHitting()


def test_what_is_in_force_stays_so_when_resolved_again_and_is_recorded(told):
    once = with_defaults(told, Recipe(top_p=1))
    assert with_defaults(told, once) == once
    wanted = {**STORED, "steps": None, "top_p": 1, "seed": 4}
    assert recipe_record(told, Recipe(top_p=1, seed=4)).items() >= wanted.items()


def test_steps_with_a_sampler_that_has_none_name_the_sampler_and_a_way_out_that_works(model):
    given = "the sampler 'threshold' has no number of steps"
    default = "the sampler 'first-hitting', this model's default, has no number of steps"
    stored = "the sampler 'threshold', this model's default, has no number of steps"
    for drawn, options, said in (
        (model, {"sampler": "threshold"}, given),
        (model, {}, default),
        (model.with_sampling(sampler="threshold"), {}, stored),
    ):
        with pytest.raises(UserError, match=re.escape(said)) as refused:
            unmask.sample(drawn, steps=4, **options)
        advised = re.search(r"--sampler ([a-z-]+)", str(refused.value))[1]
        assert unmask.sample(drawn, steps=4, sampler=advised, length=8)[0].calls <= 4


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"topp": 1}, "no default sampling setting is called 'topp'. Did you mean 'top_p'"),
        ({"top_p": "x"}, "top_p must be a float, not 'x'"),
        ({"top_p": 7}, "top-p must lie in"),
        ({"steps": 2.5}, "steps must be a int, not 2.5"),
        ({"seed": 3}, "no default sampling setting is called 'seed'"),
        ({"sampler": "entropi"}, "Did you mean 'entropy'"),
        ({"sampler": ["entropy"]}, "sampler must be a str"),
        ({"sampler": "analytic"}, "it needs scores, and the objective"),
        ({"sampler": "threshold", "steps": 4}, "has no number of steps"),
        ("entropy", "must be a table; saw 'entropy'"),
    ],
)
def test_a_model_whose_defaults_are_not_valid_is_refused_by_name(model, said, why):
    broken = replace(model, settings={"sampling": said})
    with pytest.raises(UserError, match=re.escape(why)) as refused:
        unmask.sample(broken)
    assert f"default sampling settings of {model.folder} (in unmask.json) are not valid" in str(refused.value)
    assert unmask.sample(broken, plain=True), "they can be left out"


def test_a_default_sampler_that_is_not_installed_can_be_replaced(model):
    assert unmask.sample(model.with_sampling(sampler="of-a-plugin"), sampler="groups", steps=2)[0].sampler == "groups"


@pytest.mark.parametrize("pack", ["stream", "wrap"])
def test_every_way_to_draw_begins_and_ends_a_text_alike(model, pack):
    packed = replace(model, settings={"text": {"pack": pack}})
    drawn = [event for event in generate(packed, Recipe(seed=5), n=8) if isinstance(event, Sample)]
    assert [one.tokens for one in drawn] == [one.tokens for one in unmask.sample(packed, seed=5, n=8)]
    assert ({one.tokens[0] for one in drawn} == {model.tokenizer.eos}) == (pack == "stream")


def test_a_preview_is_drawn_by_the_models_defaults_with_no_long_grid(model, told, tmp_path):
    assert preview_recipe(told, most=64, seed=1) == Recipe(seed=1)
    assert preview_recipe(model.with_sampling(sampler="groups", steps=9), most=64, seed=1).steps == 9
    assert preview_recipe(tiny.model(tmp_path / "m", objective="sedd"), most=64, seed=1).steps == 64


# ---- samplers as objects


@dataclass(frozen=True)
class Rightmost(Looking):
    """Not registered: a user's own, with one blank per call from the right."""

    schedule: Schedule = derived(LogLinear())

    @property
    def law(self) -> str:
        return "approximate (from right to left)"

    def wants(self, view):
        hidden, sigma = super().wants(view)
        return hidden & (hidden.flip(1).cumsum(1).flip(1) == 1), sigma


def test_a_policy_of_ones_own_draws_and_fills_and_gives_its_name_and_law(model):
    (one,) = unmask.sample(model, sampler=Rightmost(), length=9, seed=2, top_p=0.9)
    assert [event.position for event in one.trace] == list(range(8, -1, -1))
    assert (one.sampler, one.law) == ("Rightmost", "approximate (from right to left), with top-p 0.9")
    (found,) = unmask.infill(model, "ab[3]cd", sampler=Rightmost(), passes=2)
    assert [event.position for event in found.trace] == [4, 3, 2]
    (stored,) = unmask.sample(model.with_sampling(sampler=Rightmost()), length=9, seed=2, top_p=0.9)
    assert stored.tokens == one.tokens


def test_a_registered_policy_as_an_object_equals_its_name(model):
    groups = Groups(calls=3, growth=1.5)
    (by_object,) = unmask.sample(model, sampler=groups, seed=2)
    (by_name,) = unmask.sample(model, sampler=spell_component(groups), seed=2)
    assert (by_object.tokens, by_object.sampler) == (by_name.tokens, by_name.sampler)
    assert unmask.sample(model, sampler=groups, steps=2)[0].calls == 2
    cosine = replace(model, objective=replace(model.objective, schedule=Cosine()))
    assert method_for(cosine, Recipe(sampler=policy_of("entropy"))).policy.schedule == Cosine()


def test_what_is_no_policy_or_does_not_fit_is_refused(model, tmp_path):
    for wrong, said in ((Rightmost, r"give Rightmost\(\)"), (7, "a name, such as 'first-hitting', or a policy")):
        with pytest.raises(UserError, match=said):
            unmask.sample(model, sampler=wrong)
    with pytest.raises(
        UserError, match="'Rightmost' is not for this model: it needs masks, and the objective ar gives next token"
    ):
        unmask.sample(tiny.model(tmp_path / "ar", objective="ar"), sampler=Rightmost())
    with pytest.raises(UserError, match="the sampler 'Rightmost' has no number of steps"):
        unmask.sample(model, sampler=Rightmost(), steps=3)


@pytest.mark.parametrize("length", ["a", 2.5, True])
def test_a_length_that_is_no_whole_number_is_told_in_words(length):
    with pytest.raises(UserError, match="a whole number of tokens; saw"):
        check_length(length)


SEQUENCES = pytest.mark.parametrize("kind", ["dna", "caduceus", "protein"])
LETTERS = {"dna": "ACGT", "caduceus": "ACGT", "protein": "ACDEFGHIKLMNPQRSTVWY"}


@SEQUENCES
@pytest.mark.parametrize("objective", ["mdlm", "sedd", "d3pm", "ar"])
def test_models_of_sequences_draw_letters_and_nothing_else(kind, objective, tmp_path):
    """Random weights would draw specials, N, X and ids without a token as often as letters."""
    tokenizer = vocabulary.build_tokenizer(kind)
    model = tiny.model(tmp_path / "m", objective=objective, tokenizer=tokenizer, spare=4)
    steps = 6 if objective in ("sedd", "d3pm") else None
    drawn = unmask.sample(model, n=30, length=12, steps=steps, batch=30)
    front = 1 if objective == "ar" else 0
    assert {len(one.text) for one in drawn} == {12 - front}
    assert set("".join(one.text for one in drawn)) <= set(LETTERS[kind])
    if objective == "mdlm":
        for one in unmask.infill(model, "ACG[6]AC", n=20, passes=2):
            assert re.fullmatch(f"ACG[{LETTERS[kind]}]{{6}}AC", one.text)


def test_the_end_of_a_sequence_is_drawn_where_it_can_end_a_text(tmp_path):
    model = tiny.model(tmp_path / "m", tokenizer=vocabulary.dna())
    whole = replace(model, settings={"text": {"pack": "stream"}})
    eos = model.tokenizer.pieces[model.tokenizer.eos]
    for lengths in (
        {len(one.text) for one in unmask.sample(whole, n=30)},
        {len(one.text) for one in unmask.sample(model, n=30, until=eos)},
    ):
        assert len(lengths) > 2
    for one in unmask.infill(whole, "ACG[6]AC", n=20, passes=2):
        assert re.fullmatch("ACG[ACGT]{6}AC", one.text)


def test_a_pattern_may_ask_for_what_is_not_drawn_otherwise(tmp_path):
    model = tiny.model(tmp_path / "m", tokenizer=vocabulary.dna())
    assert unmask.sample(model, length=4, pattern="ANNA")[0].text == "ANNA"


def test_models_of_text_draw_what_they_drew(model):
    assert method_for(model, Recipe()).options.banned == ()
