"""Filling: a request made ready for the engine, and what has come of it so far."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch

from unmask.errors import UserError
from unmask.model.checkpoint import Model
from unmask.sampling.control import Control
from unmask.sampling.logits import Hook
from unmask.sampling.masked import Work, begin
from unmask.sampling.patterns.constraint import Constraint
from unmask.sampling.patterns.tokens import anything
from unmask.sampling.policies.parallel import Klass
from unmask.sampling.policy import Revising
from unmask.sampling.recipe import Method, Recipe, law_of, method_for, own_way
from unmask.sampling.tasks.continuation import beginning
from unmask.sampling.tasks.infill import given as given_around
from unmask.serving.http.schema import CompletionRequest, Controlled, Drawing, InfillRequest
from unmask.serving.limits import Limits
from unmask.serving.progress import Growing
from unmask.serving.refusal import wrong
from unmask.serving.tick import Turn
from unmask.text.prompt.canvas import Canvas, of_rows, of_tokens
from unmask.text.prompt.template import Lengths, Template, healed, parse
from unmask.text.tokens.tokenizer import encode_given

KEPT = 16  # constraints: one of 2000 states has 16 MB and more

Places = tuple[tuple[int, tuple[int, ...]], ...]  # positions, each with the ids that may stand there


class Controls:
    """Makes the methods of requests."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self.model, self.limits = model, limits
        self.compiled = lru_cache(KEPT)(self.compile)
        self.limited = lru_cache(KEPT)(self.limit)
        self.guided = lru_cache(KEPT)(self.guide)

    def method(self, body: Drawing) -> Method:
        """How a request is drawn: what its fields mean as flags of `unmask sample`."""
        if body.steps is not None and body.steps > self.limits.steps:
            raise wrong(f"steps may be {self.limits.steps} at most; saw {body.steps}.", param="steps")
        strength = Control(eta=body.eta)
        how = (body.sampler, body.steps, body.temperature, body.top_p, body.top_k, body.no_repeat)
        recipe = Recipe(*how, control=strength)
        recipe = own_way(self.model, recipe)
        method = method_for(self.model, recipe)
        constraint, control = self.constraint(body), replace(pattern_of(body), guidance=body.guidance)
        law = law_of(self.model, method.sampler, method.policy, replace(recipe, control=control))
        if body.allowed and not control.constrains:
            law += ", each draw restricted to the allowed tokens"
        shape = replace(method.shape, hook=self.guided(body.guidance), constraint=constraint)
        return replace(method, law=law, shape=shape)

    def constraint(self, body: Controlled) -> Constraint | None:
        """What the text must satisfy. It may take seconds where the pattern is new, and does not ask the network."""
        pattern, places = pattern_of(body), places_of(body)
        try:
            if places:
                return self.limited(pattern, places)
            return self.compiled(pattern) if pattern.constrains else None
        except UserError as error:
            raise wrong(str(error), param=field_of(body)) from None

    def compile(self, pattern: Control) -> Constraint:
        found = pattern.constraint(self.model, largest=self.limits.states)
        assert found is not None
        return found

    def limit(self, pattern: Control, places: Places) -> Constraint:
        """A pattern, or none, with sets of allowed tokens."""
        if pattern.constrains:
            return replace(self.compiled(pattern), allowed=dict(places))
        free = anything(self.model.text_tokenizer().size, mask=self.model.mask)
        return Constraint(free, allowed=dict(places)).on(self.model.network.vocab_embed.embedding.device)

    def guide(self, weight: float) -> Hook | None:
        return Control(guidance=weight).hook(self.model)


def pattern_of(body: Controlled) -> Control:
    """The pattern alone: requests that differ in other things share it."""
    return Control(
        pattern=body.pattern,
        one_of=tuple(body.one_of),
        form=body.form,
        whole=body.whole,
        exact_length=body.exact_length,
    )


def places_of(body: Controlled) -> Places:
    places = {one.position: tuple(sorted(set(one.tokens))) for one in body.allowed}
    if len(places) < len(body.allowed):
        raise wrong("a position has one set of allowed tokens; saw one twice.", param="allowed")
    return tuple(sorted(places.items()))


def field_of(body: Controlled) -> str | None:
    """The field to blame when nothing can match."""
    given = {"pattern": body.pattern is not None, "one_of": body.one_of, "form": body.form is not None}
    return next((name for name, there in given.items() if there), "allowed" if body.allowed else None)


TRIES = 16  # choices of lengths that are compared
LOOKS = 8  # network evaluations for each of them, twice
MOVES = 2**34  # pairs of a pattern's states, at all positions of a request: what a call with it may take
MEMORY = 2**28  # numbers that a sampler may remember for one request: 1 GB


@dataclass(frozen=True)
class Came:
    """How a token came."""

    call: int
    confidence: float


@dataclass
class Filling:
    """The candidates of one request."""

    work: Work  # as it enters the engine
    method: Method
    seed: int
    rows: list[list[int]]  # the tokens of each candidate, masks where they are still to come
    answers: list[Growing]  # the part of each that is the answer
    starts: list[int]  # where that begins
    prompt_tokens: int
    calls: int = 0
    came: list[dict[int, Came]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.came = [{} for _ in self.rows]

    def take(self, turn: Turn) -> None:
        """Put in what a turn brought, and take out what it hid again."""
        self.calls += 1
        width = turn.work.canvas.tokens.shape[1]
        for at, id, prob in zip(turn.brought.rows, turn.brought.ids, turn.brought.probs, strict=True):
            row, position = divmod(at, width)
            self.put(row, position, id)
            self.came[row][position] = Came(self.calls, prob)
        for at in turn.masked:
            row, position = divmod(at, width)
            self.put(row, position, None)
            del self.came[row][position]

    def put(self, row: int, position: int, id: int | None) -> None:
        """A token, or None for a blank."""
        self.rows[row][position] = self.work.canvas.mask if id is None else id
        answer, place = self.answers[row], position - self.starts[row]
        if 0 <= place < len(answer.ids):
            answer.put(place, id)

    @property
    def drawn(self) -> int:
        """Tokens that were drawn and stand."""
        return sum(map(len, self.came))

    @property
    def over(self) -> bool:
        """Every answer has come to its end, whatever is still hidden behind it."""
        return all(answer.over for answer in self.answers)


@dataclass(frozen=True)
class Kitchen:
    """A model with what requests may ask of it; makes requests ready."""

    model: Model
    limits: Limits
    controls: Controls

    def completion(self, body: CompletionRequest) -> Filling:
        """Prompt, blanks, suffix: a row for each candidate of each prompt."""
        tokenizer = self.model.text_tokenizer()
        method = self.controls.method(body)
        behind = encode_given(tokenizer, body.suffix)
        if behind and self.model.objective == "ar":
            raise wrong("an autoregressive model cannot fill in before given text: no suffix.", param="suffix")
        self.check_rows(len(body.prompts), body.n)
        starts = [beginning(self.model, tokenizer, prompt) for prompt in body.prompts for _ in range(body.n)]
        self.check_length(max(map(len, starts)) + body.max_tokens + len(behind))
        blanks = [self.model.mask] * body.max_tokens
        rows = [[*start, *blanks, *behind] for start in starts]
        ends = frozenset() if tokenizer.eos is None else frozenset([tokenizer.eos])
        answers = [
            Growing(tokenizer, start, [None] * body.max_tokens, body.stops, ends, isinstance(method.policy, Revising))
            for start in starts
        ]
        given = sum(map(len, starts[:: body.n])) + len(behind) * len(body.prompts)
        return self.filling(method, body, rows, answers, [len(start) for start in starts], given)

    def infill(self, body: InfillRequest, lengths: Sequence[Lengths]) -> Filling:
        """A text with blanks: a row for each candidate, its blanks as long as its turn among `lengths` says."""
        tokenizer = self.model.text_tokenizer()
        if self.model.objective == "ar":
            raise wrong("an autoregressive model cannot fill blanks; use /v1/completions, or serve a masked model.")
        method = self.controls.method(body)
        if body.text and self.template(body).heals:
            method = method.healing(tokenizer)
        self.check_rows(1, body.n)
        rows = self.blanked(body, lengths)
        self.check_length(max(map(len, rows)))
        known: list[list[int | None]] = [[None if id == self.model.mask else id for id in row] for row in rows]
        answers = [Growing(tokenizer, [], ids, revised=isinstance(method.policy, Revising)) for ids in known]
        given = sum(id is not None for id in known[0])
        return self.filling(method, body, rows, answers, [0] * len(rows), given, self.spaced(body, lengths))

    def template(self, body: InfillRequest) -> Template:
        """The template of a request. With a pattern, which is for what stands in a blank, a space before it stays."""
        parsed = parse(body.text)
        return parsed if field_of(body) else healed(parsed, self.model.text_tokenizer())

    def spaced(self, body: InfillRequest, lengths: Sequence[Lengths]) -> list[list[bool]]:
        """For each row of a template where a token must begin with a space."""
        if not body.text:
            return []
        template, tokenizer = self.template(body), self.model.text_tokenizer()
        return [template.spaced(tokenizer, lengths[i % len(lengths)]) for i in range(body.n)]

    def blanked(self, body: InfillRequest, lengths: Sequence[Lengths]) -> list[list[int]]:
        """The rows of an infilling, masks at the blanks."""
        mask, vocab = self.model.mask, self.model.spec.vocab
        if body.tokens:
            bad = [id for id in body.tokens if id is not None and (not 0 <= id < vocab or id == mask)]
            if bad:
                raise wrong(f"token ids must lie in 0..{vocab - 1}, null for a blank; saw {bad[0]}.", param="tokens")
            return [[mask if id is None else id for id in body.tokens] for _ in range(body.n)]
        template, tokenizer = self.template(body), self.model.text_tokenizer()
        return [template.tokens(tokenizer, lengths[i % len(lengths)]) for i in range(body.n)]

    def lengths(self, body: InfillRequest) -> list[Lengths]:
        """How long the blanks of a template may be, as far as the text fits; nothing to choose for tokens."""
        if not body.text:
            return []
        template, tokenizer = self.template(body), self.model.text_tokenizer()
        given = len(template.tokens(tokenizer, (0,) * len(template.blanks)))
        self.check_length(given + sum(blank.least for blank in template.blanks))
        longest = self.limits.of_text(self.model.spec.length)
        choices = [lengths for lengths in template.lengths(TRIES) if given + sum(lengths) <= longest]
        constraint = self.controls.constraint(body)
        if constraint is None:
            return choices
        can = [lengths for lengths in choices if can_match(constraint, self.row(template, lengths))]
        return can or choices[:1]  # which will be refused, with the reason

    def fit(self, body: InfillRequest, lengths: Lengths, seed: int) -> float:
        """How well the given text fits around blanks of these lengths, in nats."""
        start = self.row(self.template(body), lengths).tokens[0]
        return given_around(self.model, start, looks=LOOKS, seed=seed % 2**63)

    def row(self, template: Template, lengths: Lengths) -> Canvas:
        """A template with blanks of these lengths."""
        ids = torch.tensor([template.tokens(self.model.text_tokenizer(), lengths)], device=self.device)
        return of_tokens(ids, mask=self.model.mask)

    @property
    def device(self) -> torch.device:
        return self.model.network.vocab_embed.embedding.device

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
        rows: Sequence[list[int]],
        answers: list[Growing],
        starts: list[int],
        given: int,
        spaced: Sequence[list[bool]] = (),
    ) -> Filling:
        """The work of some rows, which are numbered 0, 1, 2, ... for each prompt."""
        width, vocab = max(map(len, rows)), self.model.spec.vocab
        if isinstance(method.policy, Klass) and len(rows) * width * vocab > MEMORY:
            raise UserError(f"the sampler {method.sampler!r} would have to remember too much: ask for less text.")
        check_controls(body, rows, mask=self.model.mask)
        states = 0 if method.shape.constraint is None else len(method.shape.constraint.automaton.table)
        if states**2 * len(rows) * width > MOVES:
            raise wrong(
                f"the pattern has {states} states, too many for {len(rows)} texts of {width} tokens: use smaller "
                "repeat counts, or ask for less text.",
                param=field_of(body),
            )
        canvas = on_device(of_rows(rows, mask=self.model.mask, spaced=spaced), self.device)
        seed = seed_of(body)
        ids = torch.arange(len(rows), device=self.device) % body.n
        try:
            work = begin(canvas, method.policy, seed=seed, ids=ids, windows=method.windows, shape=method.shape)
        except UserError as error:  # no filling matches
            raise wrong(str(error), param=field_of(body)) from None
        return Filling(work, method, seed, [list(row) for row in rows], answers, starts, given)


def seed_of(body: Drawing) -> int:
    """The seed asked for, or one that JavaScript's numbers can hold."""
    return secrets.randbits(31) if body.seed is None else body.seed


def check_controls(body: Drawing, rows: Sequence[list[int]], *, mask: int) -> None:
    """Refuse controls that have nothing to act on in these rows."""
    if body.guidance != 1 and any(all(id == mask for id in row) for row in rows):
        raise wrong("guidance compares the model with and without the given text: give a prompt.", param="guidance")
    beyond = [one.position for one in body.allowed if one.position >= max(map(len, rows))]
    if beyond:
        raise wrong(
            f"the text has {max(map(len, rows))} tokens, and none at the allowed position {beyond[0]}.",
            param="allowed",
        )


def can_match(constraint: Constraint, canvas: Canvas) -> bool:
    return bool(constraint.matches(canvas).all())


def on_device(canvas: Canvas, device: torch.device) -> Canvas:
    lengths = None if canvas.lengths is None else canvas.lengths.to(device)
    spaced = None if canvas.spaced is None else canvas.spaced.to(device)
    return Canvas(canvas.tokens.to(device), canvas.frozen.to(device), canvas.mask, lengths, spaced)
