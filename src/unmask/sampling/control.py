"""Control: requirements on the generated text: a pattern, or guidance."""

from dataclasses import dataclass
from pathlib import Path

from unmask.errors import UserError
from unmask.model.model import Model
from unmask.model.predictor import load_guide
from unmask.sampling.guidance import ByClassifier, ClassifierFree, check_weight, in_turn
from unmask.sampling.logits import Hook
from unmask.sampling.patterns.constraint import Constraint, matching, one_of
from unmask.sampling.patterns.form import pattern_of
from unmask.sampling.patterns.json_schema import schema_pattern, schema_text
from unmask.sampling.patterns.regex import LARGEST, Check, no_check
from unmask.sampling.patterns.tokens import words_of


@dataclass(frozen=True)
class Control:
    """Requirements on the generated text; the default has none."""

    pattern: str | None = None  # regular expression that the continuation, or each blank, must match
    one_of: tuple[str, ...] = ()  # or a list of texts: the result is one of them
    form: str | None = None  # or a text with holes: '{"name": <string>, "age": <int>}'
    json_schema: str | None = None  # or a JSON schema, as text or the file of one: the result is valid JSON
    whole: bool = False  # apply the pattern to the whole text, the given text included
    exact_length: bool = False  # the match fills all tokens: no eos or padding after it
    reject: int = 0  # rejection sampling: at most N tries, keep what matches; 0: restrict each draw
    guidance: float = 1.0  # classifier-free guidance weight; 1: none; above 1: follow the prompt more
    classifier: str | Path | None = None  # a folder that `unmask classify --guide` wrote
    classifier_label: str | None = None  # the label to guide towards
    classifier_weight: float = 1.0  # weight of the classifier
    classifier_exact: bool = False  # evaluate the classifier for every token instead of a first-order estimate; slow

    def __post_init__(self) -> None:
        check_weight(self.guidance, "guidance")
        check_weight(self.classifier_weight, "the classifier")
        if bool(self.one_of) + sum(one is not None for one in (self.pattern, self.form, self.json_schema)) > 1:
            raise UserError(
                "a pattern, a list of texts, a form and a JSON schema exclude each other: give one of them."
            )
        if self.reject < 0:
            raise UserError(f"the number of tries must not be negative; saw {self.reject}.")
        if not self.constrains and (self.whole or self.exact_length or self.reject):
            raise UserError("whole, exact length and reject need a pattern, a list of texts or a form: give one.")
        if (self.classifier is None) != (self.classifier_label is None):
            raise UserError("give both a classifier and a label: --classifier and --classifier-label.")

    @property
    def constrains(self) -> bool:
        return bool(self.one_of) or any(one is not None for one in (self.pattern, self.form, self.json_schema))

    @property
    def expression(self) -> str:
        """The regular expression of a pattern, a form or a JSON schema."""
        if self.json_schema is not None:
            return schema_pattern(schema_text(self.json_schema))
        return (self.pattern or "") if self.form is None else pattern_of(self.form)

    @property
    def ends(self) -> bool:
        """Whether end tokens may follow a match that is shorter than its blank."""
        return self.constrains and not self.exact_length

    def constraint(self, model: Model, *, largest: int = LARGEST, check: Check = no_check) -> Constraint | None:
        """The constraint over the model's vocabulary; refuses patterns of more than `largest` states.

        `check` is called while it is made, and ends the work by raising.
        """
        if not self.constrains:
            return None
        words, ends = words_of(model.text_tokenizer()), not self.exact_length
        if self.one_of:
            made = one_of(self.one_of, words, whole=self.whole, ends=ends, largest=largest, check=check)
        else:
            made = matching(self.expression, words, whole=self.whole, ends=ends, largest=largest, check=check)
        return made.on(model.device)

    def hook(self, model: Model) -> Hook | None:
        """The guidance, for models sampled as masked diffusion."""
        hooks: list[Hook] = []
        if self.guidance != 1 or self.classifier is not None:
            check_can_be_guided(model)
        if self.guidance != 1:
            hooks.append(ClassifierFree(model.network, self.guidance, model.layout.fixed, model.objective.leads))
        if self.classifier is not None:
            judge = load_guide(self.classifier, model)
            label = int(judge.answer.target(self.classifier_label or ""))
            hooks.append(ByClassifier(judge, label, self.classifier_weight, self.classifier_exact))
        return in_turn(hooks)

    @property
    def law(self) -> str:
        """What the control adds to the law of a sampler."""
        law = ""
        if self.constrains:
            law += (
                ", given the pattern (by rejection)"
                if self.reject
                else ", each draw restricted to what can still match"
            )
        if self.guidance != 1:
            law += f", guided by {self.guidance:g}"
        if self.classifier is not None:
            law += f", guided towards {self.classifier_label} by {self.classifier_weight:g}"
        return law


def check_can_be_guided(model: Model) -> None:
    if not model.objective.facts.masked_lm:
        raise UserError(f"guidance needs an mdlm model; the objective of this model is {model.objective.name}.")
