"""Break the code in the ways people have broken it, and show that the tests notice each one.

    python tests/mutations.py            every mutation (about five minutes on two cores)
    python tests/mutations.py weight     those whose name contains a word

First the tests run on the package as it is: they must pass. Then each mutation replaces one piece of text in a copy
of the package and runs the tests that must notice it. It prints which test failed first; a mutation that survives
makes the script exit with 1.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Mutation(NamedTuple):
    file: str  # under src/unmask
    before: str  # what stands there, once
    after: str  # what it becomes
    tests: str  # those that must notice: files under tests/, or single tests in them


MATHEMATICS, MDLM, CORRUPTION = "diffusion", "diffusion/test_mdlm.py", "diffusion/test_corruption.py"
PLAID, DIFFUSION_LM = "diffusion/test_plaid.py", "diffusion/test_diffusion_lm.py"
SSD_LM, CONTINUOUS = "diffusion/test_ssd_lm.py", "sampling/test_continuous.py"
SCHEDULE, TIMES = "diffusion/test_schedule.py", "diffusion/test_times.py"
NOISE = "training/test_noise.py"
LOOP, STATE = "training/test_loop.py", "training/test_state.py"
OPTIM, MUON = (
    "training/test_optim.py",
    "training/test_optim_muon.py::test_three_updates_are_those_of_torch_which_has_bfloat16",
)
TRIALS, TUNING = "training/test_trials.py", "training/test_tuning.py"
PREDICTOR, GUIDE = "model/test_predictor.py", "sampling/test_guidance.py"
VALIDATION, KERNELS = "training/test_validation.py", "contracts/test_kernels.py"
XL, SPINDLE = "model/backbones/test_transformer_xl.py", "diffusion/test_diffusionbert.py"
OWN = "contracts/test_objectives.py::test_sampling_follows_the_schedule_and_the_steps_that_were_trained"
LAYOUT = "contracts/test_layouts.py"
SCORING = "contracts/test_objectives.py::test_evaluation_scoring_and_serving_measure_what_was_trained"
LAWS, REMASK = "sampling/test_laws.py", "sampling/policies/test_remask.py"
LOGITS, GUIDANCE = "sampling/test_logits.py", "sampling/test_guidance.py"
INDEPENDENCE, PATTERNS = "sampling/test_independence.py", "sampling/patterns/test_constraint.py"
CACHE = f"{INDEPENDENCE}::test_the_autoregressive_cache_changes_nothing_also_when_rows_differ_in_prompt_and_length"
ROWS = "sampling/tasks/test_continuation_rows.py"
BLOCK, EXACT = "diffusion/test_block.py", "diffusion/test_block_exact.py"
BLOCKWISE = "sampling/test_blockwise.py"
ENCODERS = "model/formats/test_encoder.py::test_logits_are_those_of_transformers_at_every_length_and_with_padding"
WORDS = "model/test_model_frame.py::test_given_words_stay_as_they_were_written_and_a_hole_after_a_space_begins_a_word"
PASSES = "contracts/test_network_passes.py"
DECODER, DIALECTS = "model/backbones/test_decoder.py", "model/formats/test_dialects.py"
HALVES, ROW_CACHE = "model/passes/test_doubled.py", "model/passes/test_pieces_of_rows.py"

MUTATIONS = {
    "published: the gate of a decoder is its input": Mutation(
        "model/backbones/decoder.py",
        "F.silu(product(self.gate_proj, h)) * up",
        "F.silu(up) * product(self.gate_proj, h)",
        f"{DECODER}::test_logits_are_those_of_transformers_at_every_length",
    ),
    "published: keys of a decoder are not normed": Mutation(
        "model/backbones/decoder.py",
        "k = self.k_norm(k)",
        "pass",
        f"{DECODER}::test_logits_are_those_of_transformers_at_every_length",
    ),
    "published: a shifted model is not shifted": Mutation(
        "model/formats/decoder.py",
        "reads_before=d.shift or d.causal",
        "reads_before=d.causal",
        f"{DIALECTS}::test_a_shifted_model_predicts_a_position_at_the_one_before_and_never_the_first",
    ),
    "published: the first token of a shifted model is hidden": Mutation(
        "diffusion/mdlm.py",
        "if self.given_first:",
        "if False:",
        f"{DIALECTS}::test_a_shifted_model_predicts_a_position_at_the_one_before_and_never_the_first",
    ),
    "published: a template of a shifted model begins with its blank": Mutation(
        "text/layout.py",
        "if self.closed else self.marks.lead",
        "if self.closed else []",
        f"{DIALECTS}::test_no_pass_of_a_shifted_model_has_a_blank_at_the_first_position",
    ),
    "published: blanks look like another word": Mutation(
        "model/formats/decoder.py",
        "else table[contents.word]",
        "else table[contents.word - 1]",
        f"{DIALECTS}::test_logits_are_those_of_the_original",
    ),
    "published: heads of SMDM are taken one after the other": Mutation(
        "model/formats/decoder.py",
        "    if not grouped:",
        "    if True:",
        f"{DIALECTS}::test_logits_are_those_of_the_original",
    ),
    "published: Dream's number of tokens is rounded up": Mutation(
        "sampling/policies/confidence.py",
        "(1 - times[1:] / times[:-1])).long()",
        "(1 - times[1:] / times[:-1])).ceil().long()",
        f"{DIALECTS}::test_an_authors_sampler_runs_token_by_token",
    ),
    "published: parts of LLaDA's sampler share one clock": Mutation(
        "sampling/policies/confidence.py",
        "calls - (now + 1) *",
        "calls - 1 *",
        f"{DIALECTS}::test_an_authors_sampler_runs_token_by_token",
    ),
    "published: guidance hides the first token of a shifted model": Mutation(
        "sampling/guidance.py",
        "        if self.leads:",
        "        if False:",
        f"{DIALECTS}::test_no_pass_of_a_shifted_model_has_a_blank_at_the_first_position",
    ),
    "published: Llama's pairs in a GGUF file stay adjacent": Mutation(
        "model/formats/gguf.py",
        "if contents.paired and",
        "if not contents.paired and",
        "model/test_gguf_file.py::test_a_file_has_the_logits_of_the_network_that_was_written",
    ),
    "a text of a model of documents is scored without its end": Mutation(
        "text/layout.py", "stride=None, separate=self.closed)", "stride=None, separate=False)", LAYOUT
    ),
    "learned padding is counted": Mutation(
        "text/layouts/rows.py",
        "yield self.ended(row, length) if",
        "yield self.ended(row, length, Role.FREE) if",
        LAYOUT,
    ),
    "padding of training is counted": Mutation(
        "text/layouts/rows.py", "< ends, Role.FREE, Role.END)", "< ends, Role.FREE, Role.FREE)", LAYOUT
    ),
    "an answer of a document has no end": Mutation(
        "text/layouts/rows.py", "min(length, len(row.tokens) + 1), Role.FREE)", "len(row.tokens), Role.FREE)", LAYOUT
    ),
    "letters that stand for nothing are scored": Mutation(
        "text/layout.py", "np.isin(row.tokens, self.marks.unscored) &", "np.isin(row.tokens, ()) &", LAYOUT
    ),
    "a stored layout is not read": Mutation(
        "model/checkpoint.py", "trained_layout=about.layout", "trained_layout=None", LAYOUT
    ),
    "a late run forgets its plan when it is resumed": Mutation(
        "training/run.py",
        "planned = with_plan(asked, point)\n    if",
        "planned = asked\n    if",
        "training/test_run_clock.py",
    ),
    "the special tokens of an encoder are hidden": Mutation(
        "text/layouts/framed.py",
        "return Written(tokens, self.given(tokens, roles))",
        "return Written(tokens, roles)",
        "model/test_model_frame.py::test_training_hides_and_counts_text_alone",
    ),
    "an encoder draws special tokens": Mutation(
        "text/layouts/framed.py",
        "tokenizer.specials - {tokenizer.mask}",
        "tokenizer.specials - tokenizer.specials",
        "model/test_model_frame.py::test_no_sampler_draws_or_changes_a_special_token",
    ),
    "the other GELU in BERT": Mutation(
        "model/backbones/bert.py",
        'h = F.gelu(h, approximate="tanh" if a.tanh else "none")',
        'h = F.gelu(h, approximate="tanh")',
        ENCODERS,
    ),
    "another eps in BERT's norms": Mutation(
        "model/backbones/bert.py",
        "self.output = module_table(dense=nn.Linear(a.hidden, d), LayerNorm=nn.LayerNorm(d, a.eps))",
        "self.output = module_table(dense=nn.Linear(a.hidden, d), LayerNorm=nn.LayerNorm(d, 1e-5))",
        "model/formats/test_encoder.py::test_small_states_are_normed_as_by_transformers",
    ),
    "BERT's head has no bias": Mutation("model/backbones/bert.py", "self.words, head.bias)", "self.words)", ENCODERS),
    "BERT's positions begin one earlier": Mutation(
        "model/backbones/bert.py", "attending.position + a.offset", "attending.position + a.offset - 1", ENCODERS
    ),
    "BERT's attention is normed before the sum": Mutation(
        "model/backbones/bert.py",
        'x = out["LayerNorm"](x + (drop_some(y, chance) if chance else y))',
        'x = x + out["LayerNorm"](drop_some(y, chance) if chance else y)',
        ENCODERS,
    ),
    "a hole after a space goes on with the word": Mutation(
        "text/tokens/tokenizer.py", "if piece and not piece.startswith(inside)", "if piece", WORDS
    ),
    "given words are those of the vocabulary": Mutation(
        "sampling/tasks/infill.py",
        "if all(tokenizer.decode(tokenizer.encode(part)) == part for part in given):",
        "if given:",
        WORDS,
    ),
    # The mathematics.
    "weight is 1 % off": Mutation(
        "diffusion/schedule.py", "self.slope / self.hidden", "1.01 * self.slope / self.hidden", MATHEMATICS
    ),
    "weight 1/(t + eps)": Mutation(
        "diffusion/schedule.py", "self.slope / self.hidden", "self.slope / (self.hidden + 1e-3)", MATHEMATICS
    ),
    "discrete weight is 1 % off": Mutation(
        "diffusion/mdlm.py", "at.weight * reveal_chance", "1.01 * at.weight * reveal_chance", MATHEMATICS
    ),
    "the first step is never drawn": Mutation(
        "diffusion/times.py", ".clamp(max=total - 1) + 1", ".clamp(min=1, max=total - 1) + 1", MATHEMATICS
    ),
    "divided by the number of masks": Mutation(
        "diffusion/mdlm.py",
        "torch.where(level.hidden > 0, level.weight, 0.0) / when.density",
        "torch.where(level.hidden > 0, level.weight, 0.0) / when.density"
        " / (x_t == clean.mask).double().mean(1).clamp(min=1e-9)",
        MATHEMATICS,
    ),
    "the mask may be predicted": Mutation(
        "diffusion/rows.py", "forbid(logits[part], mask).logsumexp(1)", "logits[part].logsumexp(1)", MATHEMATICS
    ),
    "alpha_s swapped for 1 - alpha_s": Mutation(
        "diffusion/kernels/absorbing.py", "p_mask * s.alpha / torch", "p_mask * (1 - s.alpha) / torch", MATHEMATICS
    ),
    "alpha_t in the place of alpha_s": Mutation(
        "diffusion/kernels/absorbing.py", "p_mask * s.alpha / torch", "p_mask * t.alpha / torch", MATHEMATICS
    ),
    "0/0 at the first step": Mutation(
        "diffusion/kernels/absorbing.py", "torch.where(s.hidden > 0, s.hidden, 1.0)", "s.hidden", MATHEMATICS
    ),
    "no reconstruction in D3PM": Mutation(
        "diffusion/d3pm.py", "rest = reconstruction(", "rest = 0 * reconstruction(", MATHEMATICS
    ),
    "gradient reaches the mask": Mutation("diffusion/rows.py", "gradient[:, ctx.mask] = 0", "pass", MDLM),
    "sign of the loss": Mutation(
        "diffusion/mdlm.py", "return spread(row_nats", "return spread(-row_nats", MATHEMATICS
    ),
    "count weight is 1 % off": Mutation(
        "diffusion/mdlm.py", "free.to(u.dtype) / k", "1.01 * free.to(u.dtype) / k", MATHEMATICS
    ),
    "counts start at zero": Mutation(
        "diffusion/times.py", "torch.minimum((u * free).long(), free - 1) + 1", "(u * free).long()", MATHEMATICS
    ),
    "frozen tokens are hidden": Mutation(
        "diffusion/corruption.py", "chosen if frozen is None else chosen & ~frozen", "chosen", CORRUPTION
    ),
    "frozen tokens are counted": Mutation(
        "diffusion/mdlm.py", "free = clean.free.sum(1)", "free = torch.full((len(x0),), x0.shape[1])", MATHEMATICS
    ),
    "reveal chance is 1 % off": Mutation(
        "diffusion/reverse.py",
        "(t.hidden - s.hidden) / t.hidden",
        "1.01 * (t.hidden - s.hidden) / t.hidden",
        MATHEMATICS,
    ),
    "carry-over forgotten": Mutation(
        "diffusion/mdlm.py", "(x_t == mask)[..., None], forbid", "(x_t == x_t)[..., None], forbid", MDLM
    ),
    "score entropy counts the mask": Mutation(
        "diffusion/sedd.py",
        "log_s.exp().index_fill(-1, torch.tensor([mask], device=log_s.device), 0.0).sum(-1)",
        "log_s.exp().sum(-1)",
        MATHEMATICS,
    ),
    "score entropy without its constant": Mutation(
        "diffusion/sedd.py", " + r * (torch.log(r) - 1))", ")", MATHEMATICS
    ),
    "log(v - 1) forgotten": Mutation("diffusion/reverse.py", " - math.log(logits.shape[-1] - 1)", "", MATHEMATICS),
    "hidden share by subtraction": Mutation(
        "diffusion/schedule.py", "hidden = t**self.power", "hidden = 1 - (1 - t**self.power)", SCHEDULE
    ),
    "cosine derivative is 1 % off": Mutation(
        "diffusion/schedule.py",
        "math.pi / 2 * torch.sin(angle))",
        "1.01 * math.pi / 2 * torch.sin(angle))",
        SCHEDULE,
    ),
    "stratified cells overlap": Mutation(
        "diffusion/times.py", "(u / len(u) + cell / len(u)) % 1", "(u + cell / len(u)) % 1", TIMES
    ),
    "T-step bound without its first step": Mutation(
        "diffusion/bound.py", "times = grid(steps)", "times = grid(steps)[:-1]", MATHEMATICS
    ),
    "first token is predicted": Mutation(
        "diffusion/autoregressive.py",
        "torch.tensor([0], device=x0.device), False",
        "torch.tensor([0], device=x0.device), True",
        MATHEMATICS,
    ),
    # Continuous diffusion.
    "variance of a step": Mutation(
        "diffusion/continuous.py",
        "return -torch.expm1(gamma_s - gamma_t) * torch.sigmoid(gamma_s)",
        "return -torch.expm1(gamma_s - gamma_t) * torch.sigmoid(gamma_t)",
        PLAID,
    ),
    "weight of Plaid's diffusion is 1 % off": Mutation(
        "diffusion/plaid.py", "(0.5 * torch.exp(-gamma) * rate)", "(0.505 * torch.exp(-gamma) * rate)", PLAID
    ),
    "Plaid's reconstruction is not divided by its share": Mutation(
        "diffusion/plaid.py", "parts.reconstruction / share", "parts.reconstruction", PLAID
    ),
    "Plaid's schedule follows the loss itself": Mutation(
        "diffusion/plaid.py", "torch.where(first, 1.0, 2 * own)", "torch.ones_like(own)", PLAID
    ),
    "self-conditioned rows teach the embeddings": Mutation(
        "diffusion/plaid.py", "(gradient * passing[:, None])", "gradient", PLAID
    ),
    "the output prior is 1 % off": Mutation(
        "diffusion/plaid.py", "(self.ramp * alpha(", "(1.01 * self.ramp * alpha(", PLAID
    ),
    "Diffusion-LM's first step has half of its cost": Mutation(
        "diffusion/diffusion_lm.py", "/ (2 * self.first_spread(", "/ (4 * self.first_spread(", DIFFUSION_LM
    ),
    "Diffusion-LM's steps are not weighted": Mutation(
        "diffusion/diffusion_lm.py",
        "return index + 1, 1 / density[index]",
        "return index + 1, density[index] * 0 + 1",
        DIFFUSION_LM,
    ),
    "rounding with the bias": Mutation(
        "diffusion/diffusion_lm.py", "-self.matrix.square().sum(1) / 2)", "self.bias)", DIFFUSION_LM
    ),
    "SSD-LM's steps cost their cross-entropy": Mutation(
        "diffusion/ssd_lm.py", "torch.where(t[row] > 1, kl, ce)", "ce", SSD_LM
    ),
    "a row pays one of its blocks": Mutation(
        "diffusion/ssd_lm.py", "paid * (self.steps * span.of)[row]", "paid * self.steps", SSD_LM
    ),
    "SSD-LM keeps the old noise level": Mutation(
        "sampling/policies/simplex.py", "sigma(step.gamma_s)", "sigma(step.gamma_t)", SSD_LM
    ),
    "Plaid's sampler forgets its last estimate": Mutation(
        "sampling/continuous.py",
        "call=state.call + 1, guess=reading.x)",
        "call=state.call + 1, guess=None)",
        CONTINUOUS,
    ),
    "a block sees more than its window": Mutation(
        "sampling/continuous.py", "Span(max(0, end - seen), end, first, end)", "Span(0, end, first, end)", CONTINUOUS
    ),
    "a film hides text that was replaced": Mutation(
        "views/film.py", "if one[0] <= call < self.call]", "if one[0] <= call < 0]", "views/test_film.py"
    ),
    "given text keeps its noise": Mutation("sampling/continuous.py", "HELD + state.calls", "HELD", CONTINUOUS),
    "rounded text replaces given text": Mutation(
        "sampling/continuous.py",
        "wanted = free_in(canvas, span).flatten()[at]",
        "wanted = torch.ones_like(at, dtype=torch.bool)",
        CONTINUOUS,
    ),
    # Training.
    "times weigh without their density": Mutation(
        "diffusion/mdlm.py", "level.weight, 0.0) / when.density", "level.weight, 0.0)", NOISE
    ),
    "gradient per token, padding included": Mutation(
        "training/loop.py", "(team.world / total)", "(team.world / real.numel())", LOOP
    ),
    "gradient per token of a micro-batch": Mutation(
        "training/loop.py", "(team.world / total)", "(team.world / real[part].sum())", LOOP
    ),
    "loss and bound swapped": Mutation(
        "training/loop.py",
        "(nats.loss.detach().sum(), nats.bound.detach().sum())",
        "(nats.bound.detach().sum(), nats.loss.detach().sum())",
        LOOP,
    ),
    "every part gets the first rows' noise": Mutation(
        "training/loop.py", "slice(first + part.start, first + part.stop)", "slice(0, part.stop - part.start)", LOOP
    ),
    "every process gets the same noise": Mutation(
        "training/loop.py", "slice(first + part.start, first + part.stop)", "part", LOOP
    ),
    "every step gets the same noise": Mutation(
        "training/noise.py", "seed_of(seed, step, use)", "seed_of(seed, use)", LOOP
    ),
    "every step drops the same features": Mutation(
        "training/loop.py", "seed_of(plan.seed, step, DROPOUT,", "seed_of(plan.seed, DROPOUT,", LOOP
    ),
    "learning rate late by one": Mutation(
        "training/optim.py", "done = step if optim.reference else step + 1", "done = step", OPTIM
    ),
    "learning rate of a later phase goes on": Mutation(
        "training/loop.py", "optim.learning_rate(step - plan.since,", "optim.learning_rate(step,", LOOP
    ),
    "weight decay on vectors": Mutation("model/backbone.py", "return p.ndim >= 2", "return p.ndim >= 1", OPTIM),
    "average decays one update late": Mutation("training/ema.py", "(1 + n) / (10 + n)", "n / (9 + n)", OPTIM),
    "average counts updates from zero": Mutation(
        "training/loop.py", "n=step - plan.since + 1,", "n=step - plan.since,", LOOP
    ),
    "average and weights swapped": Mutation("training/ema.py", "1 - decay_at(n, decay)", "decay_at(n, decay)", OPTIM),
    "Muon without momentum": Mutation("training/optimizers/muon.py", ".mul_(self.momentum)", ".mul_(0)", MUON),
    "hidden keys in attention of bfloat16": Mutation(
        "model/short_attention.py", "if visible is not None:", "if visible is None:", "model/test_short_attention.py"
    ),
    "a slower type is taken": Mutation(
        "training/fit.py", "if share * GAIN > 1:", "if share * GAIN < 1:", "training/test_fit_type.py"
    ),
    "a modulated norm's bias in bfloat16": Mutation(
        "model/backbones/block.py", "bias.to(weight.dtype)", "bias", "contracts/test_small_floats.py"
    ),
    "Muon takes q, k, v for one matrix": Mutation("model/backbones/transformer.py", '{"qkv": 3}', "{}", MUON),
    "moments of the optimizer not restored": Mutation(
        "training/state.py",
        "for name, tensor in tensors(state).items():",
        'for name, tensor in {n: t for n, t in tensors(state).items() if n.startswith("weight.")}.items():',
        STATE,
    ),
    "average not restored": Mutation("training/state.py", "tensor.copy_(averaged.get_tensor(", "str((", STATE),
    "a guide learns from clean text": Mutation(
        "training/tuning.py", "hidden, sigma = noisy(batches[0],", "_, sigma = noisy(hidden := batches[0],", GUIDE
    ),
    "the trunk of a guide is trained": Mutation(
        "training/tuning.py", "network.requires_grad_(not asked.guide)", "pass", GUIDE
    ),
    "a frozen trunk is saved with every checkpoint": Mutation(
        "model/learner.py",
        "if p.requires_grad]",
        "if True]",
        f"{TRIALS}::test_a_guide_is_held_by_one_process_and_its_checkpoints_hold_the_head_alone",
    ),
    "a resumed trial begins with new weights": Mutation(
        "training/trials.py",
        "state.restore(state.folder_of(self.out, point.step), self.current)",
        "pass",
        f"{TRIALS}::test_a_run_that_was_killed_goes_on_from_its_last_checkpoint",
    ),
    "a run that halts is not saved": Mutation(
        "training/course.py",
        "saves = halt or over or",
        "saves = over or",
        f"{TRIALS}::test_a_run_that_was_stopped_goes_on_bit_for_bit",
    ),
    "a caller that leaves is not saved": Mutation(
        "training/course.py",
        "if not saves:",
        "if False:",
        f"{TRIALS}::test_a_caller_that_leaves_the_loop_finds_this_step_saved",
    ),
    "a halted step is not validated": Mutation(
        "training/course.py",
        "point = course.follow(point, progress, halt=halt)",
        "point = point if halt else course.follow(point, progress, halt=halt)",
        f"{TRIALS}::test_a_run_that_was_stopped_goes_on_bit_for_bit",
    ),
    "every text of an epoch in one order": Mutation(
        "training/tuning.py", "seed=seed, epoch=epoch)", "seed=seed, epoch=0)", TUNING
    ),
    "labels a number off": Mutation(
        "model/answer.py", "self.labels.index(label)", "self.labels.index(label) - 1", "model/test_answer.py"
    ),
    "numbers in units of the spread": Mutation(
        "model/answer.py", "outputs * self.spread + self.center", "outputs", "model/test_answer.py"
    ),
    "a head of other weights is loaded": Mutation(
        "model/head_files.py", 'if fingerprint(folder / HEAD) != note["head"]:', "if False:", PREDICTOR
    ),
    "a guide of another model is loaded": Mutation(
        "model/head_files.py", "made_for != weights_fingerprint(model.folder)", "False", GUIDE
    ),
    "objective's state not advanced": Mutation("training/loop.py", "state.learner.advance(sums.seen)", "pass", LOOP),
    "objective's state not restored": Mutation(
        "training/state.py", 'averages |= {f"state.{name}"', 'dict() | {f"state.{name}"', STATE
    ),
    # The systems of Table 1.
    "baselines: a new epoch keeps the old memory": Mutation(
        "text/corpus/batches.py", "begins=place == 0", "begins=False", "text/corpus/test_batches.py"
    ),
    "baselines: a row of a lane repeats no token": Mutation(
        "text/corpus/batches.py",
        "place * (self.packed.length - 1)",
        "place * self.packed.length",
        "text/corpus/test_batches.py",
    ),
    "baselines: same_length sees one position more": Mutation(
        "model/backbones/transformer_xl.py",
        "distance < self.spec.memory",
        "distance <= self.spec.memory",
        XL,
    ),
    "baselines: groups of the adaptive softmax in order": Mutation(
        "model/backbones/transformer_xl.py", "first[..., -i, None]", "first[..., i - a.groups, None]", XL
    ),
    "baselines: the omni block looks ahead": Mutation(
        "model/backbones/omninet.py",
        "rule[..., before:].repeat(*wide, 1, many)",
        "torch.ones_like(rule[..., before:]).repeat(*wide, 1, many)",
        "model/backbones/test_omninet.py",
    ),
    "baselines: Gibbs forgets to hide": Mutation(
        "sampling/policies/gibbs.py",
        "return view.tokens if self.hide else",
        "return",
        "sampling/policies/test_gibbs.py",
    ),
    "baselines: the spindle's token not tilted": Mutation(
        "sampling/policies/diffusionbert.py",
        "return logits + self.revealing(view, rows, logits.shape[-1]).log().to(logits)",
        "return logits",
        "sampling/policies/test_diffusionbert_reverse.py",
    ),
    "baselines: the spindle of the true token for all": Mutation(
        "diffusion/kernels/spindle.py",
        "stays = (log_p.exp() * (1 - r)).sum(-1).clamp",
        "stays = (log_p.exp() * (1 - r_true[:, None])).sum(-1).clamp",
        SPINDLE,
    ),
    "baselines: uniform D3PM forgets x_t": Mutation(
        "diffusion/kernels/uniform.py",
        "1 - moved + moved / letters",
        "moved / letters",
        "diffusion/test_d3pm_uniform.py",
    ),
    "baselines: the step to clean text forgets what stood there": Mutation(
        "diffusion/kernels/uniform.py",
        'self.first == "bayes"',
        'self.first == "austin"',
        "diffusion/test_d3pm_uniform.py",
    ),
    "kernel: a mask forgets what the network says of it": Mutation(
        "diffusion/kernels/absorbing.py", "s.hidden + s.alpha * p_mask", "s.hidden", KERNELS
    ),
    "kernel: the spindle reveals all alike": Mutation(
        "diffusion/kernels/spindle.py", "(log_p + r.log())", "log_p", KERNELS
    ),
    "kernel: a process that steps to its own time": Mutation(
        "sampling/uniform.py", "Step(x_t, s, t, ", "Step(x_t, s, s, ", KERNELS
    ),
    "a sampler that needs more than is given": Mutation(
        "sampling/fitting.py", "if not needs <= gives:", "if not needs & gives:", "contracts/test_policies.py"
    ),
    "baselines: memory lost between the rows of an evaluation": Mutation(
        "evaluation/likelihood/passes.py",
        "memory=memory, carried=[]",
        "memory=None, carried=[]",
        "evaluation/likelihood/test_passes_memory.py",
    ),
    "baselines: words of the marks": Mutation(
        "text/stretch.py", "len(text.split())", "len(text.split()) + 1", "text/test_layout.py"
    ),
    "carried memory dropped": Mutation(
        "training/loop.py", "torch.cat(sums.memory) if sums.memory else None", "None", LOOP
    ),
    "carried memory not restored": Mutation("training/state.py", "if (folder / MEMORY).is_file()", "if False", STATE),
    "validation with the noise of training": Mutation("training/validation.py", "use=VALID", "use=0", VALIDATION),
    "validation at the times of training": Mutation(
        "training/validation.py", "objective = objective.precise()", "pass", VALIDATION
    ),
    "validation with dropout": Mutation("training/validation.py", "denoiser.eval()", "denoiser.train()", VALIDATION),
    "warm start forgets who reads before": Mutation(
        "model/backbones/transformer.py", "before = causal or self.reads_before", "before = causal", LOOP
    ),
    # Sampling.
    "temperature applied twice": Mutation(
        "sampling/masked.py", "options.sharpen(logits)", "options.sharpen(options.sharpen(logits))", LOGITS
    ),
    "top-p drops the crossing token": Mutation(
        "sampling/logits.py", "(total - probs >= mass) if", "(total >= mass) if", LOGITS
    ),
    "the mask may be drawn": Mutation(
        "sampling/masked.py",
        "logits = forbid(logits, view.mask)",
        "pass",
        f"{INDEPENDENCE}::test_log_probs_are_those_of_the_model_before_temperature",
    ),
    "a frozen mask is filled": Mutation(
        "text/prompt/canvas.py",
        "(self.tokens == self.mask) & ~self.frozen",
        "self.tokens == self.mask",
        f"{INDEPENDENCE}::test_a_visible_token_that_is_not_frozen_is_kept_and_a_frozen_mask_is_not_filled",
    ),
    "given tokens are hidden again": Mutation(
        "sampling/masked.py",
        "seen_hidden(~work.canvas.frozen, span)",
        "seen_hidden(torch.ones_like(work.canvas.frozen), span)",
        f"{REMASK}::test_steps_bound_the_calls_and_given_tokens_stay",
    ),
    "a row's numbers depend on its place": Mutation(
        "sampling/masked.py",
        "keys(seed, ids)",
        "keys(seed, torch.arange(len(ids)))",
        "contracts/test_processes.py",
    ),
    "a row's clock runs with its neighbours": Mutation(
        "sampling/masked.py",
        "torch.zeros_like(work.clock).index_fill(0, live[asked.row], 1)",
        "1",
        CACHE,
    ),
    "first hitting prefers the end": Mutation(
        "sampling/policies/planned.py",
        "return ranks(hidden, u), shown_sigma",
        "return ranks(hidden, u * (5 + torch.arange(u.shape[1]))), shown_sigma",
        f"{LAWS}::test_first_hitting_is_the_mean_over_all_orders",
    ),
    "ancestral grid without its last step": Mutation(
        "sampling/policies/planned.py",
        "self.schedule.at(grid(self.steps).to(",
        "self.schedule.at(grid(self.steps)[:-1].to(",
        f"{LAWS}::test_the_planned_grid_has_the_law_of_the_grid",
    ),
    "ancestral shows the end of a step": Mutation(
        "sampling/policies/planned.py",
        "return dense(hidden, step), sigma[step]",
        "return dense(hidden, step), sigma[step + 1]",
        f"{LAWS}::test_the_grid_shows_the_noise_level_at_the_start_of_each_step",
    ),
    "D3PM reveals as if no mass were on masks": Mutation(
        "sampling/policies/reverse.py",
        "* (1 - p_mask) / (t.hidden + t.alpha * p_mask)",
        "/ t.hidden + 0 * p_mask",
        f"{LAWS}::test_d3pm_steps_follow_the_enumerated_reverse_process",
    ),
    "what has just come is hidden again": Mutation(
        "sampling/policies/remask.py",
        "view.free & ~view.hidden & ~fresh",
        "view.free & ~view.hidden",
        f"{REMASK}::test_a_denoiser_that_contradicts_itself_is_drawn_by_the_enumerated_law",
    ),
    "a pattern does not look ahead": Mutation(
        "sampling/patterns/constraint.py",
        "here = self.back(here, i)",
        "here = torch.ones_like(here)",
        f"{PATTERNS}::test_the_exact_sampler_follows_the_models_conditionals_restricted_by_reachability",
    ),
    "memory of rows that have left": Mutation(
        "sampling/autoregressive.py",
        "torch.isin(state.rows, asked.live).nonzero().squeeze(-1)",
        "torch.arange(len(asked.live))",
        CACHE,
    ),
    "guidance with g - 1": Mutation(
        "sampling/guidance.py",
        "(1 - weight) * without",
        "(weight - 1) * without",
        f"{GUIDANCE}::test_classifier_free_guidance_follows_the_enumerated_law",
    ),
    "sampler with a schedule of its own": Mutation(
        "sampling/recipe.py", '{"schedule": objective.schedule,', '{"schedule": None,', OWN
    ),
    "sampler with a T of its own": Mutation("sampling/recipe.py", "steps = objective.steps", "steps = None", OWN),
    "scored by the objective's defaults": Mutation(
        "sampling/score.py", "model.objective.bounded()", "type(model.objective)().bounded()", SCORING
    ),
    "a prompt without its document's eos": Mutation(
        "sampling/tasks/continuation.py",
        "return model.layout.documents if self.document is None else self.document",
        "return bool(self.document)",
        ROWS,
    ),
    "healing forgotten": Mutation(
        "sampling/tasks/continuation.py", "heals(prompt, tokenizer) and not constrained", "False", ROWS
    ),
    # Passes and memories.
    "passes: joined ones see each other's keys": Mutation(
        "model/attending.py",
        "queries, k.split(sizes)",
        "queries, [k[:size] for size in sizes]",
        f"{PASSES}::test_passes_of_all_kinds_together_are_each_alone",
    ),
    "passes: a block sees the next one": Mutation(
        "model/rules.py",
        "query // size >= key // size",
        "query // size + 1 >= key // size",
        f"{PASSES}::test_who_sees_whom_is_a_value_of_the_pass_and_a_mismatch_is_refused_by_name",
    ),
    "memory: slots that were never written are seen": Mutation(
        "model/rules.py",
        "past = past & there[:, None]",
        "past = past & there[:, None].logical_or(~there[:, None])",
        f"{PASSES}::test_a_memory_written_in_any_order_is_that_written_in_order",
    ),
    "memory: written in the order of arrival": Mutation(
        "model/key_values.py",
        "into[row, self.slots - self.start] = new[:, : self.keep]",
        "into[row, self.slots.sort(-1).values - self.start] = new[:, : self.keep]",
        f"{PASSES}::test_a_memory_written_in_any_order_is_that_written_in_order",
    ),
    "memory: what is not to be kept is kept": Mutation(
        "model/attending.py",
        "keep = m if p.keep is None else p.keep",
        "keep = m",
        f"{PASSES}::test_a_prefix_that_is_read_once_serves_any_number_of_passes",
    ),
    # One stream, drafts and stale keys.
    "one stream: a token looks from the next place, not from where autoregression looks": Mutation(
        "model/passes/aimed.py",
        "(target - int(spec.before))",
        "(target - 0)",
        "model/passes/test_aimed.py::test_from_left_to_right_it_is_the_autoregressive_network_if_that_is_where_its_"
        "weights_come_from",
    ),
    "one stream: a token keeps an aim that was not followed": Mutation(
        "sampling/one_stream.py",
        "min(int(right.sum()), len(places) - 1)",
        "min(read, len(places) - 1)",
        "sampling/test_any_order_drawn.py::test_a_memory_changes_no_token",
    ),
    "drafts: wrong proposals are remembered": Mutation(
        "sampling/drafted.py",
        "return memory.until(start + int(same.sum()))",
        "return memory",
        "sampling/test_drafted.py::test_the_samples_are_those_without_a_drafter_token_for_token",
    ),
    "cache: an uncertain answer is followed by stale keys": Mutation(
        "sampling/stale.py",
        "calls[row] = 0",
        "pass",
        "sampling/test_stale.py::test_an_uncertain_answer_is_followed_by_a_reading_of_the_whole_row",
    ),
    # Block diffusion.
    "block: positions of the clean half go on": Mutation(
        "model/passes/doubled.py",
        "torch.cat([place, before, first - 1])",
        "torch.cat([place, before + 1, first - 1])",
        HALVES,
    ),
    "block: the clean half sees noise": Mutation(
        "model/passes/doubled.py", "(k == 0) & same & (q == 0)", "(k == 0) & same & (q <= 1)", HALVES
    ),
    "block: a noisy block sees its clean text": Mutation(
        "model/passes/doubled.py", "earlier | (same & (q == 1))", "earlier | (same & (q <= 1))", HALVES
    ),
    "block: a lead sees what it predicts": Mutation(
        "model/passes/doubled.py", "position > position[:, None] + 1", "position > position[:, None]", HALVES
    ),
    "block: one share of masks for all blocks": Mutation("diffusion/block.py", "* GOLDEN % 1", "* 0.0", BLOCK),
    "block: clipped noise without its density": Mutation(
        "diffusion/block.py",
        "(weight / when.density)[:, None]",
        "weight[:, None]",
        f"{BLOCK}::test_the_bound_is_unbiased_also_with_clipped_noise",
    ),
    "block: sets weighed without their size": Mutation(
        "diffusion/block_exact.py", "1 / (k * comb(m, k))", "1 / comb(m, k)", EXACT
    ),
    "block: orders summed, not averaged": Mutation("diffusion/block_exact.py", "- log(len(members))", "- 0.0", EXACT),
    "block: a window of one block more": Mutation(
        "model/passes/pieces.py",
        "seen = max(1, rule.window // rule.size)",
        "seen = 1 + max(1, rule.window // rule.size)",
        "sampling/test_blockwise.py::test_a_window_that_slides_is_the_originals_cached_model",
    ),
    "block: a cached lead sees what it predicts": Mutation(
        "model/passes/pieces.py", "visible[-1] & (key != past)", "visible[-1]", ROW_CACHE
    ),
    "block: queries of the clean half in the last layer": Mutation(
        "model/backbones/block.py",
        "q = linear(h.flatten(0, 1).index_select(0, attending.rows), w_q)",
        "q = linear(h, w_q).flatten(0, 1).index_select(0, attending.rows)",
        f"{HALVES}::test_the_clean_half_has_no_head_and_in_the_last_layer_keys_and_values_only",
    ),
    "block: a cut row sees one token more": Mutation(
        "model/attending.py",
        "known = p.positions < p.lengths[:, None]",
        "known = p.positions <= p.lengths[:, None]",
        f"{BLOCK}::test_a_row_cut_to_a_random_length_is_the_shorter_text",
    ),
    "block: the lead is the block's own token": Mutation(
        "sampling/blockwise.py",
        "asked.tokens[i, first - 1]",
        "asked.tokens[i, first]",
        f"{BLOCKWISE}::test_every_call_shows_the_logits_that_training_and_evaluation_have",
    ),
    "block: text after the block is seen": Mutation(
        "sampling/blockwise.py",
        "asked.tokens[i, memory.filled : stops[i]]",
        "state.work.canvas.tokens[row, memory.filled :]",
        f"{BLOCKWISE}::test_text_after_a_block_is_not_seen_and_text_within_it_is",
    ),
    "block: everything read again": Mutation(
        "sampling/blockwise.py",
        "memory if self.cached and going[row] else None",
        "None",
        f"{BLOCKWISE}::test_a_call_computes_one_block_and_the_one_before_it_once",
    ),
    "block: finished rows keep their cache": Mutation(
        "sampling/blockwise.py",
        "memory if self.cached and going[row] else None",
        "memory if self.cached else None",
        f"{BLOCKWISE}::test_the_memory_of_a_finished_row_is_freed",
    ),
    "block: what is kept moves to the wrong place": Mutation(
        "model/key_values.py",
        "old_tensor[:, old.low - old.start : old.end - old.start]",
        "old_tensor[:, : old.end - old.low]",
        f"{ROW_CACHE}::test_with_a_window_too_what_is_kept_is_what_would_be_read_again",
    ),
    "block: requests ask the network one by one": Mutation(
        "model/passes/together.py",
        "if attends and len(parts) > 1:",
        "if attends and len(parts) > 99:",
        "serving/test_tick_blocks.py::"
        "test_requests_at_different_blocks_share_a_call_and_become_what_they_would_alone",
    ),
    "block: the first token of a published row predicted": Mutation(
        "model/formats/bd3lm.py",
        "BlockDiffusion(size, given_first=True)",
        "BlockDiffusion(size)",
        "model/formats/test_bd3lm.py::test_a_published_model_loads_and_gives_the_recorded_numbers",
    ),
    "block: a plain network of the class as blocks": Mutation(
        "model/formats/bd3lm.py",
        'if not flag(config, "cross_attn", True):',
        "if False:",
        "model/formats/test_bd3lm.py",
    ),
}


def run(folder: Path, tests: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """pytest in a folder that holds src and tests."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *options,
            *(f"tests/{one}" for one in tests),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def copied(source: Path, folder: Path) -> Path:
    """A copy of the package and its tests, with what Python has compiled of them."""
    for name in ("src", "tests"):
        shutil.copytree(source / name, folder / name)
    shutil.copy(source / "pyproject.toml", folder)
    return folder


def outcome(name: str, source: Path) -> str | None:
    """The first test that fails under a mutation, or None if all pass."""
    mutation = MUTATIONS[name]
    with tempfile.TemporaryDirectory() as draft:
        folder = copied(source, Path(draft))
        path = folder / "src/unmask" / mutation.file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(mutation.before, mutation.after), encoding="utf-8")
        ran = run(folder, [mutation.tests], "-x", "--timeout=60")  # a mutation may keep a sampler from ending
    failed = re.search(r"^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$", ran.stdout, re.MULTILINE)
    if ran.returncode not in (0, 1) or (ran.returncode == 1 and failed is None):
        raise SystemExit(f"mutation {name!r}: the tests did not run\n{ran.stdout}{ran.stderr}")
    return failed[1] if failed else None


def check(names: list[str], source: Path) -> None:
    """Refuse mutations of text that is not there, or there twice, and tests that fail without any mutation."""
    for name in names:
        file, before, _, _ = MUTATIONS[name]
        found = (source / "src/unmask" / file).read_text(encoding="utf-8").count(before)
        if found != 1:
            raise SystemExit(f"mutation {name!r}: {file} holds {before!r} {found} times; bring the list up to date")
    ran = run(source, sorted({MUTATIONS[name].tests for name in names}), "-n", "2")
    if ran.returncode:
        raise SystemExit(f"the tests fail without any mutation\n{ran.stdout}{ran.stderr}")


def main(word: str = "") -> int:
    names = [name for name in MUTATIONS if word in name]
    if not names:
        raise SystemExit(f"no mutation's name contains {word!r}")
    survivors = 0
    with tempfile.TemporaryDirectory() as draft, ThreadPoolExecutor(2) as pool:
        source = copied(ROOT, Path(draft))  # once, so that the files may be edited meanwhile
        check(names, source)
        found = pool.map(lambda name: outcome(name, source), names)
        for name, failed in zip(names, found, strict=True):
            print(f"{name:<42} {'noticed by ' + failed if failed else 'SURVIVES'}", flush=True)
            survivors += failed is None
    print(f"{len(names)} mutations, {survivors} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
