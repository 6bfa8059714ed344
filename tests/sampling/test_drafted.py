"""Drafts: whoever proposes, the samples are those of the autoregressive model alone, token for token."""

import pytest
import torch

from contracts.members import LETTERS, model_of
from diffusion.test_block_exact import small_network
from exact import chi_square_p, every_text
from unmask.errors import UserError
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.passing import Causal, Pass
from unmask.sampling.any_order import AnyOrderProcess
from unmask.sampling.autoregressive import AutoregressiveProcess
from unmask.sampling.drafted import Drafted, Drafter, NextBlanks
from unmask.sampling.process import answer, run
from unmask.sampling.recipe import Recipe, method_for
from unmask.text.prompt.canvas import of_tokens

MASK = LETTERS.mask
PROMPTS = [[1, 2], [3, 4, 5, 6], [7, 1]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    objectives = {"ar": "ar", "any-order": "any-order", "one-stream": "one-stream", "block": "block", "mdlm": "mdlm"}
    return {name: model_of(home / name, objective) for name, objective in objectives.items()}


def canvas(length: int = 12):
    rows = torch.full((len(PROMPTS), length), MASK)
    for row, prompt in zip(rows, PROMPTS, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    return of_tokens(rows, mask=MASK)


def drawn(method, seed=3, ids=None, rows=None):
    text = canvas() if rows is None else canvas().take(rows)
    *_, last = method.fill(text, seed=seed, ids=torch.arange(len(text.tokens)) if ids is None else ids)
    return last


def drafted(folders, name, **options):
    return method_for(folders["ar"], Recipe(drafter=str(folders[name].folder)).changed(**options))


@pytest.mark.parametrize("name", ["any-order", "one-stream", "block", "mdlm"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"top_p": 0.7, "no_repeat": 2, "drafts": 2}, marks=pytest.mark.slow),
        {"pattern": "[ab]*c[a-h .,\n]*", "drafts": 9},
        pytest.param({"window": 8, "stride": 4}, marks=pytest.mark.slow),
    ],
)
def test_the_samples_are_those_without_a_drafter_token_for_token(folders, name, options):
    own = {key: value for key, value in options.items() if key != "drafts"}
    alone = drawn(method_for(folders["ar"], Recipe().changed(**own)))
    method = drafted(folders, name, **options)
    assert isinstance(method.process, Drafted)
    last = drawn(method)
    assert torch.equal(last.canvas.tokens, alone.canvas.tokens)
    assert method.law == method_for(folders["ar"], Recipe().changed(**own)).law
    one = drawn(method, ids=torch.tensor([1]), rows=torch.tensor([1]))
    assert torch.equal(one.canvas.tokens[0], alone.canvas.tokens[1]), "a row does not depend on its batch"


def test_proposals_that_agree_cost_no_pass(folders):
    calls = {k: drawn(drafted(folders, "any-order", drafts=k, top_k=2)).call for k in (1, 4)}
    alone = drawn(method_for(folders["ar"], Recipe(top_k=2))).call
    assert calls[4] <= calls[1] < alone


def causal_network() -> Transformer:
    generator = torch.Generator().manual_seed(8)
    network = Transformer(Architecture(vocab=4, length=4, width=8, blocks=2, heads=1, causal=True, reads_before=True))
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(0.7 * torch.randn(p.shape, generator=generator))
    return network.eval().requires_grad_(False)


def test_the_law_is_that_of_the_autoregressive_model_by_enumeration():
    network, texts = causal_network(), every_text(3, 4)
    texts = texts[texts[:, 0] == 1]
    logits = network.head(network.run(Pass(texts, Causal())).hidden)[:, :-1, :3]
    each = logits.log_softmax(-1).gather(2, texts[:, 1:, None]).squeeze(2).sum(1).double().exp()
    law = {tuple(text): float(p) for text, p in zip(texts.tolist(), each, strict=True)}
    assert sum(law.values()) == pytest.approx(1, abs=1e-6)
    proposing = Drafter(AnyOrderProcess(NextBlanks(count=3)), small_network(before=False))
    process = Drafted(AutoregressiveProcess().inner, proposing)
    rows = of_tokens(torch.tensor([[1, 3, 3, 3]]).expand(240, -1), mask=3)
    *_, last = run(process, network, rows, seed=2)
    assert chi_square_p(law, last.canvas.tokens) > 1e-3


def test_asking_and_committing_twice_gives_the_same(folders):
    method = drafted(folders, "any-order")
    state = method.process.begin(canvas(), seed=4)
    while not method.process.done(state):
        asked = method.process.ask(state)
        reply = answer(method.network, asked)
        (one, first), (other, second) = (method.process.commit(state, asked, reply) for _ in range(2))
        assert torch.equal(first.tokens, second.tokens)
        assert torch.equal(one.work.canvas.tokens, other.work.canvas.tokens)
        assert len(first.likely) <= len(first.tokens) == len(first.rows) == len(first.log_probs)
        state = one
    assert method.process.ask(state) is None


def test_what_cannot_draft_or_be_drafted_for_is_refused(folders, tmp_path):
    with pytest.raises(UserError, match="checked by an autoregressive network"):
        method_for(folders["mdlm"], Recipe(drafter=str(folders["block"].folder)))
    with pytest.raises(UserError, match="proposes no tokens"):
        method_for(folders["ar"], Recipe(drafter=str(folders["ar"].folder)))
    with pytest.raises(UserError, match="another tokenizer"):
        method_for(folders["ar"], Recipe(drafter="stories"))
    with pytest.raises(UserError, match="drafts"):
        Recipe(drafts=0)
