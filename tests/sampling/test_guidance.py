"""Guidance: its reductions, Bayes' rule by enumeration, the first-order step, and the head on a model's own trunk."""

import json

import pytest
import torch

import exact
import tiny
from sampling import laws
from sampling.laws import last, law_of
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.model.answer import Answer
from unmask.model.checkpoint import load
from unmask.model.head_files import guide_reading, write_guide
from unmask.model.predictor import Predictor, load_guide
from unmask.model.reading import Encoded
from unmask.sampling.control import Control
from unmask.sampling.guidance import ByClassifier, ClassifierFree, in_turn
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import ask, begin, fill
from unmask.sampling.policies.planned import FirstHitting
from unmask.sampling.tasks.continuation import sample
from unmask.sampling.tasks.infill import infill
from unmask.text.prompt.canvas import blank, of_rows, of_tokens
from unmask.training.loop import UpdatePlan
from unmask.training.tuning import Lesson, Tune, Tuning, begin_tuning, tune

ENOUGH = 1e-4
ROWS = 40_000


def guided_law(world, start, weight):
    """One position a call; conditionals g log p + (1 − g) log p without the given tokens, renormalised."""
    given = [i for i, token in enumerate(start) if token != world.mask]

    def move(state, call):
        unseen = tuple(world.mask if i in given else token for i, token in enumerate(state))
        where = laws.hidden(world, state)
        for i in where:
            seen, blind = (exact.log_p_hidden(world, torch.tensor(s), i) for s in (state, unseen))
            probs = (weight * seen + (1 - weight) * blind).softmax(-1)
            for letter, p in enumerate(probs.tolist()):
                yield (*state[:i], letter, *state[i + 1 :]), p / len(where)

    law = {tuple(start): 1.0}
    for _ in laws.hidden(world, tuple(start)):
        after = {}
        for state, chance in law.items():
            for new, p in move(state, 0):
                after[new] = after.get(new, 0.0) + chance * p
        law = after
    return law


@pytest.mark.parametrize("weight", [-0.5, 0.5, 2.0])
def test_classifier_free_guidance_follows_the_enumerated_law(weight):
    world, start = exact.TableWorld.random(11), [1, 3, 3]
    options = LogitOptions(hook=ClassifierFree(world.network, weight))
    draws = laws.draws(world, FirstHitting(), start=torch.tensor(start), options=options, rows=ROWS)
    assert exact.chi_square_p(guided_law(world, start, weight), draws) > ENOUGH


def test_weights_0_and_1_are_the_two_models():
    world, start = exact.TableWorld.random(11), torch.tensor([[1, 3, 3]])
    work = begin(of_tokens(start, mask=3), FirstHitting())
    question = ask(work)
    logits = world.network(question.tokens, question.sigma, question.rows)
    blind = world.network(torch.tensor([[3, 3, 3]]), question.sigma, question.rows)

    def never(x_t, sigma, rows):
        raise AssertionError("at weight 1 the network is not asked again")

    assert torch.equal(ClassifierFree(never, 1.0)(question, logits), logits)
    assert torch.equal(ClassifierFree(world.network, 0.0)(question, logits), blind)
    half = ClassifierFree(world.network, 0.5)(question, logits)[0, :3].softmax(-1)
    product = (logits[0, :3].softmax(-1) * blind[0, :3].softmax(-1)).sqrt()
    assert half.tolist() == pytest.approx((product / product.sum()).tolist())


class LastLetter:
    """p(the last letter is y | what is visible) in a chain, exactly; embeddings are one-hot letters."""

    def __init__(self, world):
        self.world = world
        self.table = torch.eye(world.letters + 1, dtype=torch.float64)

    def log_probs(self, embedded, sigma, *, lengths=None):
        tokens = embedded.argmax(-1)
        return self.world.posteriors(tokens)[:, -1].clamp(min=1e-300).log()


@pytest.mark.slow
def test_exact_classifier_guidance_is_bayes_rule():
    world = exact.ChainWorld.random(4, length=3)
    joint = exact.law_of_chain(world)
    given = {text: p for text, p in joint.items() if text[-1] == 1}
    law = {text: p / sum(given.values()) for text, p in given.items()}
    options = LogitOptions(hook=ByClassifier(LastLetter(world), 1, 1.0, exact=True))
    draws = laws.draws(world, FirstHitting(), options=options, rows=4000)
    assert exact.chi_square_p(law, draws) > ENOUGH


@pytest.mark.slow
def test_exact_classifier_guidance_on_the_table_follows_the_enumerated_law():
    world, weight = exact.TableWorld.random(12), 1.7
    score = torch.randn(64, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log_softmax(-1)
    place = torch.tensor([16, 4, 1])

    class Table:
        table = torch.eye(4, dtype=torch.float64)

        def log_probs(self, embedded, sigma, *, lengths=None):
            return score[(embedded.argmax(-1) * place).sum(1)]

    def move(state, call):
        where = laws.hidden(world, state)
        for i in where:
            said = exact.log_p_hidden(world, torch.tensor(state), i)
            states = torch.tensor([(*state[:i], v, *state[i + 1 :]) for v in range(3)])
            probs = (said + weight * score[(states * place).sum(1), 0]).softmax(-1)
            for letter, p in enumerate(probs.tolist()):
                yield (*state[:i], letter, *state[i + 1 :]), p / len(where)

    options = LogitOptions(hook=ByClassifier(Table(), 0, weight, exact=True))
    draws = laws.draws(world, FirstHitting(), options=options, rows=4000)
    assert exact.chi_square_p(law_of(world, move), draws) > ENOUGH


class Linear:
    """A classifier that is linear in the embeddings of its text: first order is then exact."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.table = torch.randn(4, 5, generator=generator, dtype=torch.float64)
        self.weight = torch.randn(3, 5, generator=generator, dtype=torch.float64)

    def log_probs(self, embedded, sigma, *, lengths=None):
        return (embedded * self.weight).sum((1, 2))[:, None]


@pytest.mark.parametrize("inference", [False, True])
def test_first_order_is_exact_for_a_linear_classifier_even_in_inference_mode(inference):
    world, judge = exact.TableWorld.random(13), Linear()
    with torch.inference_mode(inference):
        question = ask(begin(blank(4, 3, mask=3), FirstHitting()))
        logits = world.network(question.tokens, question.sigma, question.rows)
        first, every = (ByClassifier(judge, 0, 0.8, exact=exact_)(question, logits) for exact_ in (False, True))
    assert torch.allclose(first.softmax(-1), every.softmax(-1))
    assert not torch.allclose(first.softmax(-1), logits.softmax(-1))


def test_hooks_work_in_turn():
    assert in_turn([]) is None
    plus, double = (lambda ask, x: x + 1), (lambda ask, x: 2 * x)
    question = ask(begin(blank(1, 3, mask=3), FirstHitting()))
    assert in_turn([plus, double])(question, torch.ones(1, 4)).tolist() == [[4.0] * 4]


def rising(model):
    """Texts of two kinds that differ in their letters: easy to tell apart."""
    generator = torch.Generator().manual_seed(0)
    kinds = [torch.randint(0, 4, (40, 8), generator=generator), torch.randint(4, 8, (40, 8), generator=generator)]
    letters = "abcdefgh"
    return [
        ("".join(letters[i] for i in row), name)
        for kind, name in zip(kinds, ("low", "high"), strict=True)
        for row in kind
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model, a file of labelled texts, and the classifier made of them with one command."""
    folder = tmp_path_factory.mktemp("guided")
    torch.manual_seed(0)  # the biases of a tiny checkpoint come from torch's own numbers
    tiny.checkpoint(folder / "model")
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"text": text, "label": name}) + "\n" for text, name in rising(None)))
    command = [
        "classify",
        str(folder / "model"),
        str(data),
        "--guide",
        "--out",
        str(folder / "head"),
        "--steps",
        "150",
    ]
    assert main(command) == 0
    return folder


@pytest.mark.slow
def test_one_command_trains_a_head_that_is_right_on_held_out_texts_and_worse_on_noisy_ones(trained):
    right = json.loads((trained / "head" / "result.json").read_text())["valid"]
    assert right["accuracy"]["mean"] > 0.9
    assert right["accuracy_90_hidden"]["mean"] <= right["accuracy"]["mean"]
    assert json.loads((trained / "head/best/classifier.json").read_text())["labels"] == ["high", "low"]
    assert sorted(path.name for path in (trained / "head/best/").iterdir()) == ["classifier.json", "head.safetensors"]


@pytest.mark.parametrize("more", [["--number"], ["--scratch"], ["--pair", "other"], ["--predict"]])
def test_a_guide_is_one_classifier_of_single_texts(trained, capsys, more):
    asked = ["classify", str(trained / "model"), str(trained / "data.jsonl"), "--guide", "--out", str(trained / "no")]
    assert main([*asked, *more]) == 2
    assert "--guide takes no" in capsys.readouterr().err
    assert main(asked[:-2]) == 2
    assert "--out FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize("classifier_exact", [False, True])
def test_a_trained_head_pulls_samples_towards_its_label(trained, classifier_exact):
    model = load(trained / "model")
    share = {}
    for label in ("low", "high"):
        control = Control(
            classifier=trained / "head",
            classifier_label=label,
            classifier_weight=8.0,
            classifier_exact=classifier_exact,
        )
        texts = [one.text for one in sample(model, n=12, length=8, control=control)]
        letters = [letter for text in texts for letter in text if letter in "abcdefgh"]
        share[label] = sum(letter in "abcd" for letter in letters) / max(1, len(letters))
    assert share["low"] > share["high"] + 0.15


def test_training_leaves_the_trunk_alone_and_pads_like_short_texts(trained):
    model = load(trained / "model")
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    asked = Tuning(guide=True, reading=guide_reading(model), tune=Tune(lr=0.01, dropout=0.0), device="cpu")
    plan, texts = UpdatePlan(asked.tune.optim(3), 0, 0, 3), [[1, 2, 3], [4, 5, 6, 7, 1]]
    state = begin_tuning(model, Answer(("a", "b")), asked, plan)
    lesson = Lesson([Encoded(text) for text in texts], torch.tensor([0.0, 1.0]))
    losses = [one.loss for one in tune(state, lesson, asked, plan)]
    assert losses[0] == pytest.approx(0.6931, abs=0.1)
    classifier = state.learner.eval()
    assert all(torch.equal(before[name], value) for name, value in classifier.backbone.state_dict().items())
    assert classifier.head.weight.grad is None
    rows = of_rows(texts, mask=model.mask)
    together = classifier.log_probs(classifier.table[rows.tokens], torch.zeros(2), lengths=rows.lengths)
    alone = classifier.log_probs(classifier.table[torch.tensor(texts[:1])], torch.zeros(1))
    assert together[0].tolist() == pytest.approx(alone[0].tolist(), abs=1e-5)


def test_a_classifier_of_another_vocabulary_or_model_is_refused(trained, tmp_path):
    spare = tiny.model(tmp_path / "spare", spare=3)
    with pytest.raises(UserError, match="another vocabulary"):
        load_guide(trained / "head", spare)
    other = tiny.model(tmp_path / "timed", timed=True)
    with pytest.raises(UserError, match="another model"):
        load_guide(trained / "head", other)
    question = ask(begin(blank(1, 3, mask=3), FirstHitting()))
    with pytest.raises(UserError, match="another vocabulary"):
        ByClassifier(Predictor(spare, Answer(("a", "b"))), 0)(question, torch.zeros(1, 4))
    with pytest.raises(UserError, match="is not a classifier"):
        load_guide(tmp_path, spare)
    model = load(trained / "model")
    with pytest.raises(UserError, match="the label 'happy' was not in the training data: high, low"):
        Control(classifier=trained / "head", classifier_label="happy").hook(model)
    (tmp_path / "head").mkdir()
    write_guide(tmp_path / "head", Predictor(model, Answer(("a", "b"))).stored(), model, {})
    note = json.loads((tmp_path / "head/classifier.json").read_text())
    for content, message in (
        ("{", "classifier.json"),
        (json.dumps({**note, "labels": None}), "cannot be read"),
        (json.dumps({**note, "labels": [str(i) for i in range(10**5)]}), "does not fit 100000 outputs"),
    ):
        (tmp_path / "head" / "classifier.json").write_text(content)
        with pytest.raises(UserError, match=message):
            load_guide(tmp_path / "head", model)


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"guidance": float("inf")}, "finite"),
        ({"classifier_weight": float("nan"), "classifier": "x", "classifier_label": "y"}, "finite"),
        ({"classifier": "x"}, "give both"),
        ({"pattern": "a", "form": "b"}, "exclude"),
        ({"whole": True}, "need a pattern"),
        ({"pattern": "a", "reject": -1}, "negative"),
    ],
)
def test_wrong_controls_are_refused(wrong, told):
    with pytest.raises(UserError, match=told):
        Control(**wrong)


def test_guidance_needs_given_text_and_an_mdlm_model(trained, tmp_path):
    with pytest.raises(UserError, match="give a prompt"):
        sample(trained / "model", control=Control(guidance=2.0))
    with pytest.raises(UserError, match="needs an mdlm model"):
        sample(tiny.model(tmp_path / "ar", objective="ar"), prompt="a", control=Control(guidance=2.0))


def test_a_prompt_counts_for_more_under_guidance(trained):
    model = load(trained / "model")
    plain, guided = (
        [one.text for one in sample(model, n=4, prompt="abc", control=Control(guidance=weight))] for weight in (1, 4)
    )
    assert plain != guided
    assert "guided by 4" in sample(model, prompt="abc", control=Control(guidance=4.0))[0].law
    assert infill(model, "ab[3]c", control=Control(guidance=2.0))[0].law.endswith("guided by 2")


def test_padding_is_not_shown_to_the_blind_network():
    seen = []

    def network(x_t, sigma, rows, *, lengths=None):
        seen.append((x_t, lengths))
        return torch.zeros(len(rows), 4)

    canvas = of_rows([[1, 3], [2, 3, 3, 3]], mask=3)
    last(fill(network, canvas, options=LogitOptions(hook=ClassifierFree(network, 2.0))))
    (shown, lengths), (blind, blind_lengths) = seen[:2]
    assert torch.equal(lengths, blind_lengths)
    assert bool((blind == 3).all())
    assert not bool((shown == 3).all())
