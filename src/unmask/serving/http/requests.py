"""Requests: request bodies as works for the engine, with the tasks and methods of Python and the command line.

Compiling a pattern may take seconds. Requests with equal controls share one constraint and one guidance object, so
that the engine can batch them.
"""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from unmask.errors import UserError
from unmask.model.model import Model
from unmask.sampling.control import Control
from unmask.sampling.patterns.constraint import Constraint
from unmask.sampling.patterns.regex import Check, no_check
from unmask.sampling.patterns.tokens import anything
from unmask.sampling.policies.parallel import Klass
from unmask.sampling.recipe import Method, Recipe, method_for
from unmask.sampling.score import log_likelihood
from unmask.sampling.tasks.continuation import Continue
from unmask.sampling.tasks.infill import Infill
from unmask.sampling.tasks.lengths import Posterior
from unmask.sampling.tasks.rows import TaskRow, canvas_of, drop_unneeded_blanks
from unmask.serving.batch import Job
from unmask.serving.cache import ResultCache
from unmask.serving.http.schema import CompletionRequest, Drawing, InfillRequest
from unmask.serving.limits import Limits
from unmask.serving.progress import Filling, Growing
from unmask.serving.refusal import wrong
from unmask.text.corpus.turns import Turn
from unmask.text.prompt.template import Lengths, parse

KEPT = 2**28  # bytes of all cached constraints
LARGEST = 2**25  # bytes of one constraint: each waiting request may hold its own
GUIDES = 16  # cached guidance objects, which share the model
TRIES = 16  # choices of lengths to compare
PASSES = 8  # as in `unmask infill`: at most 32 times as many forward passes for each choice
MOVES = 2**34  # limit on `Constraint.work` · (positions of a request): the cost of a call
MEMORY = 2**28  # limit on the numbers that a sampler stores for one request: 1 GB

Places = tuple[tuple[int, tuple[int, ...]], ...]  # positions, each with its allowed ids


class Controls:
    """Patterns and guidance, compiled once for requests that ask for the same."""

    def __init__(self, model: Model, limits: Limits, classifier: str | None = None) -> None:
        self.model, self.limits, self.classifier = model, limits, classifier
        self.constraints: ResultCache[Constraint] = ResultCache(KEPT, size=memory_of)
        self.guided = lru_cache(GUIDES)(lambda guide: guide.hook(self.model))

    def method(self, body: Drawing, recipe: Recipe, *, healed: bool, ends: bool = False) -> Method:
        """The sampling method of a request; `ends`: the end token may be drawn."""
        steps, reject = recipe.steps, recipe.control.reject
        if steps is not None and steps > self.limits.steps:
            raise wrong(f"steps may be {self.limits.steps} at most; saw {steps}.", param="steps")
        if reject > self.limits.tries:
            raise wrong(f"reject may be {self.limits.tries} at most; saw {reject}.", param="reject")
        constraint = self.constraint(body)
        method = method_for(
            self.model,
            recipe,
            healed=healed,
            ends=ends,
            constraint=lambda control: constraint,
            hook=lambda control: self.guided(guide_of(control)),
        )
        if body.allowed and not recipe.control.constrains:
            return replace(method, law=method.law + ", each draw restricted to the allowed tokens")
        return method

    def recipe(self, body: Drawing) -> Recipe:
        """The sampling options of a request. The classifier is the server's; a request names the label only."""
        if body.classifier_label is not None and self.classifier is None:
            raise wrong("this server has no classifier: start it with --classifier.", param="classifier_label")
        return body.recipe(classifier=None if body.classifier_label is None else self.classifier)

    def constraint(self, body: Drawing, check: Check = no_check) -> Constraint | None:
        """The constraint on the text. A new pattern may take seconds to compile; the network is not called.

        `check` is called all the while, and ends the work by raising: nobody waits for it any more.
        """
        pattern, places = pattern_alone(self.recipe(body).control), places_of(body)
        try:
            if places:
                return self.constraints.get((pattern, places), lambda: self.limit(pattern, places, check))
            return self.compiled(pattern, check) if pattern.constrains else None
        except UserError as error:
            raise wrong(str(error), param=field_of(body)) from None

    def compiled(self, pattern: Control, check: Check) -> Constraint:
        return self.constraints.get(pattern, lambda: self.compile(pattern, check))

    def compile(self, pattern: Control, check: Check) -> Constraint:
        constraint = pattern.constraint(self.model, largest=self.limits.states, check=check)
        assert constraint is not None
        return within_memory(constraint)

    def limit(self, pattern: Control, places: Places, check: Check) -> Constraint:
        """A pattern, or none, combined with sets of allowed tokens."""
        if pattern.constrains:
            return within_memory(replace(self.compiled(pattern, check), allowed=dict(places)))
        layout = self.model.layout
        named = set[int]() if layout.fixed else {id for _, ids in places for id in ids}
        silent = layout.undrawn(self.model.text_tokenizer(), ends=layout.documents)
        banned = tuple(id for id in silent if id not in named)
        free = anything(self.model.text_tokenizer().size, mask=self.model.mask, banned=banned)
        return within_memory(Constraint(free, allowed=dict(places)).on(self.model.device))


def memory_of(key: Control | tuple[Control, Places], constraint: Constraint) -> int:
    """Bytes of a cached constraint and its key, an upper bound; the sets of allowed tokens are part of both."""
    pattern = key if isinstance(key, Control) else key[0]
    texts = [pattern.pattern or "", pattern.form or "", pattern.json_schema or "", *pattern.one_of]
    return 2 * constraint.bytes + sum(100 + 4 * len(text) for text in texts)


def within_memory(constraint: Constraint) -> Constraint:
    if constraint.bytes > LARGEST:
        raise UserError(
            f"{constraint.about} takes up to {constraint.bytes >> 20:,} MB when compiled; this server allows "
            f"{LARGEST >> 20} MB. Use smaller repeat counts, fewer texts or fewer different sets of allowed tokens."
        )
    return constraint


def pattern_alone(control: Control) -> Control:
    """The pattern part of a control, shared by requests that differ in other fields."""
    return control_of(control, "pattern", "one_of", "form", "json_schema", "whole", "exact_length")


def guide_of(control: Control) -> Control:
    """The guidance part of a control."""
    return control_of(control, "guidance", *(name for name in vars(control) if name.startswith("classifier")))


def control_of(control: Control, *names: str) -> Control:
    return Control(**{name: getattr(control, name) for name in names})


def places_of(body: Drawing) -> Places:
    places = {one.position: tuple(sorted(set(one.tokens))) for one in body.allowed}
    if len(places) < len(body.allowed):
        raise wrong("each position may have one set of allowed tokens; a position is listed twice.", param="allowed")
    return tuple(sorted(places.items()))


def field_of(body: Drawing) -> str | None:
    """The field that an error names when nothing can match."""
    given = {"pattern": body.pattern is not None, "one_of": body.one_of, "form": body.form is not None}
    given["response_format"] = body.json_schema is not None
    return next((name for name, there in given.items() if there), "allowed" if body.allowed else None)


@dataclass(frozen=True)
class Requests:
    """Turns request bodies into works for the engine, within the limits of the server."""

    model: Model
    limits: Limits
    controls: Controls

    def completion(self, body: CompletionRequest) -> Filling:
        """Prompt, blanks, suffix: one row per candidate of each prompt."""
        tokenizer, recipe = self.model.text_tokenizer(), self.controls.recipe(body)
        self.check_rows(len(body.prompts), body.n)
        constrained = field_of(body) is not None
        answers_alone = self.model.layout.answers
        new = None if answers_alone and "max_tokens" not in body.model_fields_set else body.max_tokens
        tasks = [Continue(prompt, new=new, suffix=body.suffix) for prompt in body.prompts]
        asked = [task.row(self.model, constrained=constrained) for task in tasks]
        self.check_length(max(len(row.tokens) for row in asked))
        ends = any(task.ends(self.model) for task in tasks)
        method = self.controls.method(body, recipe, healed=any(row.heals for row in asked), ends=ends)
        rows = [row for row in self.shorten(asked, method, body) for _ in range(body.n)]
        eos = () if tokenizer.eos is None else (tokenizer.eos,)
        stops = self.model.ends.union(self.model.layout.end_ids, eos)
        answers = [
            Growing(
                tokenizer,
                [] if answers_alone else row.tokens[: row.start],
                [None] * row.tokens.count(self.model.mask),
                body.stops,
                stops,
                not method.process.settled,
                row.healed,
            )
            for row in rows
        ]
        given = sum(len(row.tokens) - row.tokens.count(self.model.mask) for row in asked)
        return self.filling(method, body, recipe, rows, answers, given)

    def talking(self) -> "Requests":
        """The same with rows for conversations."""
        talker = self.model.talker
        if talker is None:
            raise wrong(
                "this model was not trained on conversations or pairs and has no chat template, so it has no place "
                "for messages: use /v1/completions, or train one: `unmask train --data x.jsonl --template roles`.",
                status=404,
                code="no_conversations",
            )
        return replace(self, model=talker)

    def conversation(self, turns: Sequence[Turn]) -> list[int]:
        """The messages of a conversation as a prompt, as they stand in training."""
        return self.model.layout.conversation(self.model.text_tokenizer(), turns)

    def shorten(self, rows: Sequence[TaskRow], method: Method, body: Drawing) -> list[TaskRow]:
        """Rows as long as the longest match."""
        mask, device = self.model.mask, self.model.device
        try:
            return [drop_unneeded_blanks(row, method.constraint, mask=mask, device=device) for row in rows]
        except UserError as error:  # no filling matches
            raise wrong(str(error), param=field_of(body)) from None

    def infill(self, body: InfillRequest, lengths: Sequence[Lengths]) -> Filling:
        """A text with blanks: one row per candidate, with the blank lengths taken in turn from `lengths`."""
        tokenizer, recipe = self.model.text_tokenizer(), self.controls.recipe(body)
        self.check_infills()
        self.check_rows(1, body.n)
        rows, task = [self.of_tokens(body)] * body.n, None
        if body.text:
            task = self.task(body)
            rows = [task.row(lengths[i % len(lengths)]) for i in range(body.n)]
        self.check_length(max(len(row.tokens) for row in rows))
        method = self.controls.method(body, recipe, healed=any(row.heals for row in rows))
        known: list[list[int | None]] = [[None if id == self.model.mask else id for id in row.tokens] for row in rows]
        answers = [Growing(tokenizer, [], ids, revised=not method.process.settled) for ids in known]
        given = sum(id is not None for id in known[0])
        numbers = [rows[:i].count(row) for i, row in enumerate(rows)]  # among those of equal lengths, as in Python
        filling = self.filling(method, body, recipe, rows, answers, given, numbers)
        if task is not None:
            filling.written = lambda row, ids: task.text(lengths[row % len(lengths)], ids)
        return filling

    def task(self, body: InfillRequest) -> Infill:
        """The task of a template, parsed once."""
        return Infill(self.model, parse(body.text), field_of(body) is not None, body.given)

    def of_tokens(self, body: InfillRequest) -> TaskRow:
        """The row of a request with token ids, null at the blanks."""
        mask, vocab = self.model.mask, self.model.spec.vocab
        bad = [id for id in body.tokens if id is not None and (not 0 <= id < vocab or id == mask)]
        if bad:
            raise wrong(f"token ids must lie in 0..{vocab - 1}, null for a blank; saw {bad[0]}.", param="tokens")
        return TaskRow([mask if id is None else id for id in body.tokens])

    def lengths(self, body: InfillRequest) -> list[Lengths]:
        """Possible lengths of a template's blanks, as far as the text fits; empty for a request with token ids."""
        if not body.text:
            return []
        task, longest = self.task(body), self.limits.of_text(self.model.spec.length)
        blanks = task.template.blanks
        given = task.size((0,) * len(blanks))
        self.check_length(given + sum(blank.least for blank in blanks))
        try:
            return task.choices(TRIES, constraint=self.controls.constraint(body), longest=longest)
        except UserError:
            return task.choices(TRIES, longest=longest)[:1]  # too long: refused later, with the reason

    def weigh(self, body: InfillRequest, choices: Sequence[Lengths]) -> Iterator[Posterior | None]:
        """The posterior of these lengths, last; None after every batch of forward passes."""
        self.check_infills()
        self.check_rows(1, body.n)
        return self.task(body).weigh(choices, passes=PASSES, seed=request_seed(body) % 2**63)

    def likely(self, filling: Filling, row: int) -> float:
        """log p(blanks | given) of a finished candidate; 0, without a forward pass, if there is no other."""
        if len(filling.rows) == 1:
            return 0.0
        tokens = torch.tensor(filling.rows[row], device=self.model.device)
        frozen = torch.ones_like(tokens, dtype=torch.bool)
        frozen[list(filling.came[row])] = False
        return log_likelihood(self.model, tokens, frozen, passes=PASSES, seed=filling.seed).nats

    def check_infills(self) -> None:
        if not self.model.objective.facts.infills:
            raise wrong(
                f"a model of the objective {self.model.objective.name} writes from left to right and cannot fill "
                "blanks; use /v1/completions, or serve a masked model."
            )

    def check_rows(self, prompts: int, n: int) -> None:
        if prompts * n > self.limits.rows:
            raise wrong(
                f"{prompts} prompts with {n} candidates each are {prompts * n} texts; one request may have "
                f"{self.limits.rows}.",
                param="n",
            )

    def check_length(self, length: int) -> None:
        longest = self.limits.of_text(self.model.spec.length)
        if length > longest:
            raise wrong(
                f"prompt and blanks together have {length} tokens; this model takes {longest} at most.",
                code="context_length_exceeded",
            )

    def filling(
        self,
        method: Method,
        body: Drawing,
        recipe: Recipe,
        rows: Sequence[TaskRow],
        answers: list[Growing],
        given: int,
        numbers: Sequence[int] | None = None,
    ) -> Filling:
        """The rows of a request as a work of the engine, numbered 0, 1, 2, ... per prompt, or by `numbers`."""
        width, vocab = max(len(row.tokens) for row in rows), self.model.spec.vocab
        if isinstance(method.policy, Klass) and len(rows) * width * vocab > MEMORY:
            raise UserError(f"the sampler {method.sampler!r} would need too much memory: ask for less text.")
        check_controls(body, recipe, rows, mask=self.model.mask)
        if method.constraint is not None and method.constraint.work * len(rows) * width > MOVES:
            states, kinds = method.constraint.automaton.table.shape
            raise wrong(
                f"the pattern has {states} states and {kinds} kinds of tokens, too many for {len(rows)} texts of "
                f"{width} tokens: use smaller repeat counts, or ask for less text.",
                param=field_of(body),
            )
        canvas = canvas_of(list(rows), mask=self.model.mask, device=self.model.device)
        numbers = [i % body.n for i in range(len(rows))] if numbers is None else numbers
        seed, ids = request_seed(body), torch.tensor(numbers, device=self.model.device)
        try:
            work = Job(method.process, method.process.begin(canvas, seed=seed, ids=ids))
        except UserError as error:  # no filling matches
            raise wrong(str(error), param=field_of(body)) from None
        return Filling(
            work,
            method,
            seed,
            [list(row.tokens) for row in rows],
            answers,
            [row.start for row in rows],
            given,
            in_order=self.model.objective.facts.causal,
        )


def request_seed(body: Drawing) -> int:
    """The request's seed, or a random one that a JavaScript number can hold."""
    return secrets.randbits(31) if body.seed is None else body.seed


def check_controls(body: Drawing, recipe: Recipe, rows: Sequence[TaskRow], *, mask: int) -> None:
    """Refuse controls that have no effect on these rows."""
    if recipe.control.guidance != 1 and any(all(id == mask for id in row.tokens) for row in rows):
        raise wrong("guidance compares the model with and without the given text: give a prompt.", param="guidance")
    longest = max(len(row.tokens) for row in rows)
    beyond = [one.position for one in body.allowed if one.position >= longest]
    if beyond:
        raise wrong(
            f"the text has {longest} tokens: position {beyond[0]} in allowed is beyond its end.",
            param="allowed",
        )
