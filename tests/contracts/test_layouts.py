"""One text is one row, with the same ids and roles, wherever it is trained on, measured or drawn."""

import numpy as np
import pytest

from contracts.members import LENGTH, LETTERS, model_of
from unmask.evaluation.likelihood import measure
from unmask.evaluation.likelihood.measure import How
from unmask.serving.http.requests import Controls, Requests
from unmask.serving.http.scoring import passage_of
from unmask.serving.limits import Limits
from unmask.text.corpus.passages import Document
from unmask.text.corpus.tokenized import tokenized

TEXT = "abc de"


@pytest.mark.parametrize("objective", ["mdlm", "ar"])
def test_a_text_of_a_model_of_documents_is_one_row_for_evaluate_score_and_harness(objective, tmp_path):
    model = model_of(tmp_path / "m", objective, text={"pack": "rows"})
    ids = LETTERS.encode(TEXT)
    (row,) = measure.measurement_of(model, tokenized("x", [TEXT], LETTERS), How()).passages
    ends = [LETTERS.eos] * (1 if objective == "ar" else LENGTH - 1 - len(ids))
    assert row.tokens.tolist() == [LETTERS.bos, *ids, *ends]
    assert row.scored == len(ids) + 1
    score = passage_of(Requests(model, Limits(), Controls(model, Limits())), TEXT)
    answer = measure.answer_row(model, np.zeros(0, int), Document.of(TEXT, np.array(ids)), number=0)
    (rolling,) = measure.text_rows(model, Document.of(TEXT, np.array(ids)), length=LENGTH)
    for other in (score, rolling, *([answer] if objective == "mdlm" else [])):
        assert other.tokens.tolist() == row.tokens.tolist()
        assert other.frozen.tolist() == row.frozen.tolist()
        assert (other.scored, other.bytes) == (row.scored, row.bytes)
