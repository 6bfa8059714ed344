"""Published diffusion models load by their tables and give the originals' logits, likelihoods and sampler runs.

The vectors were recorded by running the originals (tests/golden/README.md); tolerances are relative to 1 + |x|.
"""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from model.published import NAMED, cases, letters, published
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.kernels.uniform import rate_nats, uniform_log_step
from unmask.diffusion.sedd import SEDD
from unmask.errors import UserError
from unmask.model.checkpoint import load, save, stated_for
from unmask.model.convert import convert
from unmask.model.formats.decoder import end_ids
from unmask.model.formats.dialects import DIALECTS
from unmask.model.passes.whole import logits_at
from unmask.model.passing import Apart, Blocks, Full, Pass, Rule
from unmask.random import Noise
from unmask.sampling.blockwise import Blockwise
from unmask.sampling.logits import LogitOptions
from unmask.sampling.policies.confidence import Ordered
from unmask.sampling.policies.parallel import Threshold
from unmask.sampling.process import run
from unmask.sampling.recipe import Recipe, method_for
from unmask.serving.http.requests import Controls, Requests
from unmask.serving.http.schema import CompletionRequest
from unmask.serving.limits import Limits
from unmask.text.prompt.canvas import of_rows, of_tokens

FULL = ["llada", "dream", "diffullama", "diffugpt", "a2d_qwen3", "smdm"]
FULL_VIEW = Full()
GREEDY = LogitOptions(temperature=0.0)


def model_of(name, folder, dialect=None, **keys):
    return load(published(name, folder, **keys), dialect=NAMED.get(name, "") if dialect is None else dialect)


def blanked(model, x, masked):
    """Rows with our id of blanks, which differs from the originals' where theirs is an ordinary word."""
    return torch.where(masked, model.mask, x).long()


def close(found, wanted, tolerance=5e-5):
    assert ((found - wanted).abs() / (1 + wanted.abs())).max() < tolerance


@torch.no_grad()
def logits(model, x, sees=FULL_VIEW, **options):
    return model.network.head(model.network.run(Pass(x, sees, **options)).hidden)


@pytest.mark.parametrize("name", FULL)
def test_logits_are_those_of_the_original(name, tmp_path):
    model, recorded = model_of(name, tmp_path / "m"), cases(name)
    x = blanked(model, recorded["input_ids"], recorded["masked"])
    wanted = recorded["logits"]
    found = logits(model, x)
    close(found[..., : wanted.shape[-1]], wanted)
    assert torch.isneginf(found[..., wanted.shape[-1] :]).all()  # an id for blanks alone is no answer
    assert model.objective.leads == DIALECTS[model.settings["dialect"]].shift


def test_smdm_reads_a_row_that_is_continued_with_masks_and_has_exact_angles(tmp_path):
    model, recorded = model_of("smdm", tmp_path / "m"), cases("smdm")
    x = blanked(model, recorded["input_ids"], recorded["masked"])
    padded = torch.nn.functional.pad(x, (0, 40 - x.shape[1]), value=model.mask)
    wanted = recorded["logits_padded_to_block_size"]
    close(logits(model, padded)[:, : x.shape[1], : wanted.shape[-1]], wanted)
    rounded = recorded["logits_bf16_rope"]  # what differs from the original, as docs/how/models.md says
    assert 1e-3 < (logits(model, x)[..., : rounded.shape[-1]] - rounded).abs().max() < 2e-2


def test_a_mixture_of_experts_is_refused_by_name(tmp_path):
    with pytest.raises(UserError, match="does not know: model_type 'llada2_moe', a mixture of experts"):
        load(published("llada", tmp_path / "m", model_type="llada2_moe", num_experts=8))


@pytest.mark.parametrize("name", ["dream", "diffugpt", "diffullama"])
def test_a_shifted_model_predicts_a_position_at_the_one_before_and_never_the_first(name, tmp_path):
    model, recorded = model_of(name, tmp_path / "m"), cases(name)
    x = blanked(model, recorded["input_ids"], recorded["masked"])
    with torch.no_grad():
        log_p = model.log_probs(x)
    wanted = recorded["shifted_logits"]
    wanted = wanted.clone() if name != "dream" else wanted.index_fill(-1, torch.tensor([model.mask]), -torch.inf)
    masked = recorded["masked"]
    close(log_p[..., : wanted.shape[-1]][masked].exp(), wanted.log_softmax(-1)[masked].exp(), 1e-4)
    everything = Noise(t=torch.tensor([0.999] * 3), u=torch.zeros(x.shape))
    seen = []

    def network(x_t, sigma, rows):
        seen.append(x_t)
        return torch.zeros(len(rows), model.spec.vocab)

    clean = recorded["x0"].long()
    nats = model.objective.nats(network, CleanRows(clean, noise=everything, mask=model.mask))
    assert (seen[0][:, 0] == clean[:, 0]).all()
    assert (seen[0][:, 1:] == model.mask).all()
    assert (nats.bound[:, 0] == 0).all()


@pytest.mark.parametrize("name", ["llada", "a2d_qwen3"])
def test_padding_is_that_of_the_original(name, tmp_path):
    model, recorded = model_of(name, tmp_path / "m"), cases(name)
    x, real = recorded["input_ids"].long(), recorded["pad_attention_mask"].bool()
    right = real[:, :1].squeeze(1)  # rows that are padded at their end
    lengths = real.sum(1)
    found = logits(model, x[right], lengths=lengths[right])
    close(found[real[right]][..., : recorded["pad_logits"].shape[-1]], recorded["pad_logits"][right][real[right]])


def test_left_padding_is_a_shorter_row(tmp_path):
    """Rotary positions are relative: the same text without its padding has the same logits."""
    for name, valid in (("llada", "pad_attention_mask"), ("dream", "pad_attention_mask")):
        model, recorded = model_of(name, tmp_path / name), cases(name)
        for row, real in enumerate(recorded[valid].bool()):
            own = recorded["input_ids"][row][real].long()
            close(logits(model, own[None])[0], recorded["pad_logits"][row][real])


def test_llada_has_the_likelihood_of_its_authors(tmp_path):
    """Minus the mean over the corrupted rows they drew of Σ −log p / ratio, ratio = k/n."""
    model, recorded = model_of("llada", tmp_path / "m"), cases("llada")
    clean = torch.cat((recorded["ll_prompt"], recorded["ll_answer"])).long()
    noisy, ratio = recorded["ll_noisy"].flatten(0, 1).long(), recorded["ll_ratio"].flatten()
    hidden = noisy == model.mask
    log_p = logits(model, noisy).log_softmax(-1).gather(-1, clean.expand_as(noisy)[..., None]).squeeze(-1)
    value = ((log_p * hidden).sum(1) / ratio).mean()
    close(value, recorded["ll_value"].float(), 1e-4)


def last(steps):
    *_, step = steps
    return step.canvas.tokens


def canvas_after(prompt, new, mask):
    return of_tokens(torch.cat((prompt.long(), torch.full((len(prompt), new), mask)), 1), mask=mask)


def drawn(model, prompt, new, **options):
    """The prompts and `new` tokens after them, by the model's default sampler unless the options name another."""
    method = method_for(model, Recipe().changed(**options))
    return last(method.fill(canvas_after(prompt, new, model.mask), seed=0, ids=torch.arange(len(prompt))))


ARGMAX = {"temperature": 0.0, "top_p": 1.0}  # as the runs were recorded
RUNS = {  # of samplers that are the defaults of their families, with the settings of each run
    "llada: one_block": (12, {"steps": 12}),
    "llada: blocks": (16, {"sampler": "draw-then-keep:part=4", "steps": 8}),
    "llada: uneven": (12, {"steps": 5}),
    "llada: cfg": (12, {"sampler": "draw-then-keep:part=6", "steps": 6, "guidance": 2.5}),  # cfg_scale + 1
    "dream: entropy": (11, {"steps": 5, **ARGMAX}),
    "dream: maskgit_plus": (11, {"sampler": "confidence:falls=0.001", "steps": 5, **ARGMAX}),
    "dream: topk_margin": (11, {"sampler": "margin:falls=0.001", "steps": 5, **ARGMAX}),
    "sdar: dynamic": (14, {"sampler": "threshold:tau=0.25", **ARGMAX}),
    "sdar: static": (14, {"sampler": "draw-then-keep:each=2", **ARGMAX}),
    "sdar: sequential": (14, {"sampler": "left-to-right", **ARGMAX}),
}


@pytest.mark.parametrize("which", RUNS)
def test_an_authors_sampler_runs_token_by_token(which, tmp_path):
    (name, run_name), (new, options) = which.split(": "), RUNS[which]
    model, recorded = model_of(name, tmp_path / "m"), cases(name)
    tokens = drawn(model, recorded["gen_prompt"], new, **options)
    assert torch.equal(tokens, recorded[f"gen_{run_name}"].long())


def test_dreams_sampler_runs_from_a_padded_prompt(tmp_path):
    model, recorded = model_of("dream", tmp_path / "m"), cases("dream")
    for row, real in enumerate(recorded["genpad_attention_mask"].bool()):
        tokens = drawn(model, recorded["genpad_prompt"][row][real][None], 8, steps=8, **ARGMAX)
        assert torch.equal(tokens[0, -8:], recorded["genpad_entropy"][row, -8:].long())


def test_tiny_a2d_runs_token_by_token_with_both_sides(tmp_path):
    model, recorded = model_of("a2d_qwen3", tmp_path / "m"), cases("a2d_qwen3")
    assert model.sampling["sampler"] == "draw-then-keep:part=32"
    eos = int(recorded["eos_id"])
    most = max(len(recorded["gen_prompt0"]), len(recorded["gen_prompt1"]))
    for row in (0, 1):
        prompt = recorded[f"gen_prompt{row}"][None]
        tokens = drawn(model, prompt, 16, sampler="draw-then-keep:part=8", steps=8)
        wanted = recorded["gen_mdlm"][row].long()
        assert torch.equal(tokens[0], wanted[: tokens.shape[1]])
        assert (wanted[tokens.shape[1] :] == eos).all()
        assert len(wanted) == most + 16


def test_tiny_a2d_in_blocks_sees_what_the_original_sees(tmp_path):
    model, recorded = model_of("a2d_qwen3", tmp_path / "m", "a2d-bd3lm", block_size=8), cases("a2d_qwen3")
    assert model.objective.size == 8
    x, valid = recorded["block_input_ids"].long(), recorded["block_valid"].bool()
    visible, place = recorded["block_attention"].bool()[:, 0], recorded["block_position_ids"].long()
    found = logits(model, x, Rule(visible), position=place)
    close(found[valid], recorded["block_logits"][valid])
    whole = valid.all(1)  # without padding it is the rule of blocks
    assert whole.any()
    close(logits(model, x[whole], Blocks(8)), recorded["block_logits"][whole])


def test_sdar_sees_blocks_and_the_clean_text_before_them(tmp_path):
    model, recorded = model_of("sdar", tmp_path / "m"), cases("sdar")
    x, clean = recorded["input_ids"].long(), recorded["x0"].long()
    close(logits(model, x, Blocks(4)), recorded["logits_block_causal"])
    with torch.no_grad():
        rows = torch.arange(x.numel())
        found = logits_at(model.network, x, None, rows, clean=clean, size=4).view(*x.shape, -1)
    close(found, recorded["logits_given_clean_blocks"])


def test_tiny_a2d_runs_token_by_token_in_blocks(tmp_path):
    """Its blocks begin where the prompt ends; the original fills the first one with padding at its left."""
    model, recorded = model_of("a2d_qwen3", tmp_path / "m", "a2d-bd3lm", block_size=8), cases("a2d_qwen3")
    policy = Ordered(by="confidence", calls=4, draw_first=True)
    process = Blockwise.of(policy=policy, options=GREEDY, windows=None, model=model)
    for row in (0, 1):
        prompt = recorded[f"gen_prompt{row}"][None]
        for cached in (True, False):
            canvas = canvas_after(prompt, 16, model.mask)
            tokens = last(run(replace(process, cached=cached), model.network, canvas))
            assert torch.equal(tokens[0, -16:], recorded["gen_bd3lm"][row, -16:].long())
    both = of_rows([[1, 2, model.mask], [1, model.mask, model.mask]], mask=model.mask)
    with pytest.raises(UserError, match="prompts of several lengths"):
        process.begin(both)


def test_fast_dllm_predicts_the_first_token_of_a_block_from_the_finished_text(tmp_path):
    model, recorded = model_of("fast_dllm_v2", tmp_path / "m"), cases("fast_dllm_v2")
    assert (model.objective.size, model.objective.opens, model.objective.leads) == (8, True, True)
    x, clean = recorded["input_ids"].long(), recorded["x0"].long()
    close(logits(model, clean, Blocks(8)), recorded["logits_clean"])
    with torch.no_grad():
        rows = torch.arange(x.numel())
        found = logits_at(model.network, x, None, rows, **model.objective.context(clean)).view(*x.shape, -1)
    first, others = [8, 16], [i for i in range(24) if i % 8]
    close(found[:, first], recorded["logits_clean"][:, [7, 15]])
    close(found[:, others], recorded["logits_given_clean_blocks"][:, [i - 1 for i in others]])


def plain_run_of_fast_dllm(model, prompt, new, *, size, part, tau):
    """Its sampler as a loop: a block's first token from the finished text, then parts of the block by a threshold."""
    length, mask = len(prompt) + new, model.mask
    row = torch.tensor([*prompt.tolist(), *[mask] * new])
    for begin in range(0, length, size):
        end = min(begin + size, length)
        if begin and row[begin] == mask:
            row[begin] = forbidden(logits(model, row[None, :begin], Blocks(size))[0, -1], mask).argmax()
        for low in range(begin, end, part):
            high = min(low + part, end)
            while bool((row[low:high] == mask).any()):
                p = forbidden(logits(model, row[None, :end], Blocks(size))[0], mask).softmax(-1)
                sure, token = p[low - 1 : high - 1].max(-1) if low else p[[0, *range(high - 1)]].max(-1)
                sure = torch.where(row[low:high] == mask, sure, -1.0)
                taken = (sure >= tau) | (sure == sure.max())
                row[low:high] = torch.where(taken & (row[low:high] == mask), token, row[low:high])
    return row


def forbidden(logits, mask):
    return logits.index_fill(-1, torch.tensor([mask]), -torch.inf)


@pytest.mark.parametrize("given", [3, 8, 13])
def test_fast_dllms_sampler_is_its_loop(given, tmp_path):
    model, recorded = model_of("fast_dllm_v2", tmp_path / "m"), cases("fast_dllm_v2")
    process = replace(
        Blockwise.of(policy=Threshold(tau=0.1), options=GREEDY, windows=None, model=model), part=4, window=64
    )
    prompt = recorded["x0"][0, :given].long()
    wanted = plain_run_of_fast_dllm(model, prompt, 20, size=8, part=4, tau=0.1)
    for cached in (True, False):
        canvas = canvas_after(prompt[None], 20, model.mask)
        assert torch.equal(last(run(replace(process, cached=cached), model.network, canvas))[0], wanted)


def test_dplm_is_a_diffusion_model_whose_network_counts_the_masks(tmp_path):
    model, recorded = model_of("dplm", tmp_path / "m"), cases("dplm")
    assert model.objective.name == "mdlm"
    x = recorded["input_ids"].long()
    real = x != 1
    found = logits(model, x, lengths=real.sum(1))
    close(found[real], recorded["logits"][real])
    assert (found - recorded["logits_without_token_dropout"])[real].abs().max() > 1
    close(logits(model, recorded["x0"].long(), lengths=real.sum(1))[real], recorded["logits_of_x0"][real])


def test_dplms_sampler_is_the_default_of_its_files(tmp_path):
    model = model_of("dplm", tmp_path / "m")
    method = method_for(model, Recipe())
    assert (method.sampler, method.policy.steps) == ("rdm", 500)


def test_duo_has_the_recorded_logits_losses_and_posteriors_and_no_mask(tmp_path):
    model, recorded = model_of("duo", tmp_path / "m", mask=False), cases("duo")
    x, clean, letters = recorded["input_ids"].long(), recorded["x0"].long(), 58
    assert torch.equal(recorded["changed"], x != clean)
    assert (model.mask, model.spec.vocab, model.objective.continuous) == (letters, letters + 1, True)
    with torch.no_grad():
        rows = torch.arange(x.numel())
        found = logits_at(model.network, x, recorded["sigma"], rows)
        log_p = model.log_probs(x, recorded["sigma"]).flatten(0, 1)
    # The recorded ones are normalised.
    close(found[:, :letters].log_softmax(-1), recorded["logits"].flatten(0, 1).log_softmax(-1))
    assert torch.isneginf(log_p[:, letters]).all()
    kernel = model.objective.kernel(model.parts)
    of_row = rows // x.shape[1]
    close(kernel.sigma(recorded["t"]), recorded["sigma"])
    close(model.objective.schedule.at(recorded["t"]).alpha, recorded["alpha"])
    level = model.objective.schedule.at(recorded["t"]).take(of_row)
    nats = rate_nats(log_p, clean.flatten(), x.flatten(), level)
    close(nats, recorded["nll_per_token"].flatten(), 1e-4)
    s = model.objective.schedule.at(model.objective.schedule.when(1 - recorded["alpha_s"].flatten())).take(of_row)
    step = uniform_log_step(log_p, x.flatten(), s, level, mask=model.mask).exp()
    close(step[:, :letters], recorded["posterior"].flatten(0, 1), 1e-4)


def test_duo_is_bounded_and_sampled_and_kept_in_our_layout(tmp_path):
    model = load(letters(published("duo", tmp_path / "m", mask=False), 58))
    (tmp_path / "text.txt").write_text("ABCDEFGHIJ" * 3)
    assert unmask.evaluate(model, tmp_path / "text.txt", length=12, passes=2)["nats_per_token"] > 0
    one = unmask.sample(model, prompt="AB", length=10, steps=4)[0]
    assert one.text.startswith("AB")
    convert(tmp_path / "m", tmp_path / "ours")
    again = load(tmp_path / "ours")
    assert (again.objective, again.mask) == (model.objective, model.mask)


def test_sedd_is_read_as_a_denoiser_whose_bound_is_never_above_its_own(tmp_path):
    model, recorded = model_of("sedd", tmp_path / "m"), cases("sedd")
    assert model.mask == int(recorded["mask_id"])
    x, clean, sigma = recorded["input_ids"].long(), recorded["x0"].long(), recorded["sigma"]
    hidden = recorded["masked"]
    with torch.no_grad():
        log_p = model.log_probs(x, sigma)
    # log score = log p + log Σ e^logit − log(e^σ − 1) − log(V − 1), so its softmax is p
    close(log_p[..., :-1][hidden].exp(), recorded["log_score"][..., :-1].softmax(-1)[hidden], 1e-4)
    analytic = recorded["analytic_probs"][..., :-1][hidden]  # a step of its sampler reveals a token with p
    close(log_p[..., :-1][hidden].exp(), analytic / analytic.sum(-1, keepdim=True), 1e-4)
    denoised = recorded["denoiser_probs"][hidden]  # its last step; not normalised, as its scores are not
    close(log_p[..., :-1][hidden].exp(), denoised / denoised.sum(-1, keepdim=True), 1e-4)
    euler = recorded["euler_probs"][..., :-1][hidden]  # step · dσ · score: a mask becomes a token with p too
    close(log_p[..., :-1][hidden].exp(), euler / euler.sum(-1, keepdim=True), 1e-4)
    weight = (recorded["dsigma"] / torch.expm1(sigma))[:, None]
    ours = -weight * log_p.gather(-1, clean[..., None]).squeeze(-1) * hidden
    assert (ours <= recorded["loss_per_token"] + 1e-4).all()

    def network(x_t, sigma, rows):
        with torch.no_grad():
            return logits_at(model.network, x_t, sigma, rows)

    own = SEDD(schedule=model.objective.schedule)
    noise = Noise(t=recorded["t"], u=torch.rand(x.shape, generator=torch.Generator().manual_seed(0)))
    score = own.nats(network, CleanRows(clean, noise=noise, mask=model.mask)).bound
    bound = model.objective.nats(network, CleanRows(clean, noise=noise, mask=model.mask)).bound
    assert score.sum() > bound.sum() > 0


@pytest.mark.parametrize("name", ["diffugpt", "diffullama"])
def test_a_word_that_is_also_the_mask_is_no_blank(name, tmp_path):
    """Blanks have an id of their own with the word's vector: the word can be read, scored and answered."""
    model, recorded = model_of(name, tmp_path / "m"), cases(name)
    word = int(recorded["mask_id"])
    assert model.mask == model.spec.vocab - 1 != word
    x = recorded["x0"].long().clone()
    x[:, 3] = word
    other = x.clone()
    other[:, 3] = model.mask
    assert torch.equal(logits(model, x), logits(model, other))
    nats = model.objective.nats(
        lambda x_t, sigma, rows: logits(model, x_t).flatten(0, 1)[rows],
        CleanRows(
            x,
            noise=Noise(t=torch.tensor([0.99] * 3), u=torch.zeros(x.shape)),
            mask=model.mask,
        ),
    )
    assert (nats.bound[:, 3] > 0).all()
    assert nats.bound.isfinite().all()
    assert not torch.isneginf(logits(model, x)[..., word]).any()


def test_what_is_converted_to_our_layout_is_the_same_model(tmp_path):
    for name in ("llada", "diffullama", "sdar", "smdm"):
        model = model_of(name, tmp_path / name)
        convert_stated(tmp_path / name, NAMED.get(name))
        convert(tmp_path / name, tmp_path / f"{name}-ours")
        again = load(tmp_path / f"{name}-ours")
        assert (again.mask, again.objective, again.spec) == (model.mask, model.objective, model.spec)
        assert again.settings["dialect"] == DIALECTS[again.settings["dialect"]].name
        x = cases(name)["x0"].long()
        assert torch.equal(logits(again, x), logits(model, x))


def convert_stated(folder, dialect):
    path = folder / "config.json"
    if dialect:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"unmask_dialect": dialect}))


@pytest.mark.parametrize(
    ("name", "keys", "told"),
    [
        ("llada", {"block_type": "sequential"}, "block_type = 'sequential'"),
        ("llada", {"mask_token_id": None}, "which id is the mask"),
        ("llada", {"mask_token_id": 112}, "one of 0 to 111"),
        ("llada", {"alibi": True}, "alibi = True"),
        ("dream", {"block_size": 32}, "DreamReasoner"),
        ("dream", {"architectures": ["DreamForCausalLM"]}, "DreamReasoner"),
        ("sdar", {"block_size": None}, "no 'block_size'"),
        ("sdar", {"num_experts": 128}, "mixture of experts"),
        ("sedd", {"graph": {"type": "uniform"}}, "type = 'uniform'"),
        ("sedd", {"model": 3}, "must be a table"),
        ("smdm", {"n_query_groups": 2}, "shared"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name, keys, told, tmp_path):
    with pytest.raises(UserError, match=told):
        load(published(name, tmp_path / "m", **keys))


def test_files_of_several_families_are_refused_without_a_dialect_and_the_hub_name_states_it(tmp_path):
    for name in ("diffullama", "a2d_qwen3"):
        with pytest.raises(UserError, match=r"several kinds of models do: .*--dialect"):
            load(published(name, tmp_path / name))
    assert stated_for("diffusionfamily/diffullama#main") == "diffullama"
    assert stated_for("dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1") == "a2d-bd3lm"
    assert not stated_for("GSAI-ML/LLaDA-8B-Base")
    assert not stated_for("stories")


def test_shards_of_mixed_types_are_one_model_and_lies_are_refused(tmp_path):
    folder = published("sdar", tmp_path / "m")
    wanted = logits(load(folder), cases("sdar")["x0"].long(), Blocks(4))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    places = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in names if places[name] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert torch.equal(logits(load(folder), cases("sdar")["x0"].long(), Blocks(4)), wanted)
    index.write_text(json.dumps({"weight_map": places | {names[0]: places[names[1]]}}))
    with pytest.raises(UserError, match="do not agree"):
        load(folder)
    save_file({name: tensors[name].long() for name in names if places[name].startswith("model-00001")}, folder / "x")
    (folder / "x").rename(folder / "model-00001-of-00002.safetensors")
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(UserError, match="I64"):
        load(folder)


def test_a_stored_type_is_kept_and_saved_again(tmp_path):
    folder = published("llada", tmp_path / "m")
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    model = load(folder)
    assert {p.dtype for p in model.network.parameters()} == {torch.bfloat16}
    assert logits(model, cases("llada")["x0"].long()).dtype == torch.float32
    again = load(save(tmp_path / "ours", model.network, mask=model.mask, dtype="bfloat16"))
    x = cases("llada")["x0"].long()
    assert torch.equal(logits(again, x), logits(model, x))


@pytest.mark.parametrize(("name", "size"), [("dream", 119), ("diffugpt", 100), ("diffullama", 110)])
def test_no_pass_of_a_shifted_model_has_a_blank_at_the_first_position(name, size, tmp_path):
    model = load(letters(published(name, tmp_path / "m"), size), dialect=NAMED.get(name, ""))
    seen, forward = [], model.network.forward

    def noted(p):
        parts = p.sees.parts if isinstance(p.sees, Apart) else (p,)
        seen.extend(part.x[:, 0] for part in parts)
        return forward(p)

    model.network.forward = noted
    unmask.sample(model, n=2, length=8, steps=3)
    unmask.sample(model, prompt="AB", length=8, steps=3, guidance=2.0)
    unmask.sample(model, length=14, steps=3, window=6)
    with pytest.raises(UserError, match="give a stride below the window"):
        unmask.sample(model, length=14, window=6, stride=6)
    unmask.infill(model, "[2]ABC[2]", steps=3)
    unmask.infill(model, "___ABC", steps=3)
    unmask.score(model, ["ABCDE"])
    (tmp_path / "text.txt").write_text("ABCDEFGHIJ" * 3)
    for estimator in ("count", "time", "order", "duel"):
        unmask.evaluate(model, tmp_path / "text.txt", estimator=estimator, length=12)
    assert len(seen) > 10
    assert not any((first == model.mask).any() for first in seen)


def test_a_text_ends_at_the_end_tokens_of_the_files(tmp_path):
    """eos_token_id, one or several, and the table's ids where the vocabulary has them; sampled, served, evaluated."""
    folder = letters(published("dream", tmp_path / "m", eos_token_id=None), 119)
    free = unmask.sample(load(folder), prompt="AB", length=14, steps=12, seed=2)[0]
    ended = free.tokens[-4]
    first = free.tokens.index(ended, 2)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [ended, 999_999]}))
    model = load(folder)
    assert model.ends == {ended}
    one = unmask.sample(model, prompt="AB", length=14, steps=12, seed=2)[0]
    assert one.tokens == free.tokens[: first + 1]
    assert one.text == model.tokenizer.decode(free.tokens[:first])
    known = unmask.sample(model, prompt="AB", length=14, steps=12, seed=2, until=free.text[2])[0]
    assert known.text == "AB"
    limits = Limits()
    filling = Requests(model, limits, Controls(model, limits)).completion(
        CompletionRequest(prompt="AB", max_tokens=8)
    )
    assert ended in filling.answers[0].ends
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": "x"}))
    with pytest.raises(UserError, match="must be an id, or a list of ids"):
        load(folder)
    assert end_ids(DIALECTS["llada"], {}, 126464) == [126081, 126348]


def test_a_word_as_mask_that_nobody_names_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"write mask_token_id into config\.json"):
        load(letters(published("diffullama", tmp_path / "m", mask=False), 110), dialect="diffullama")
