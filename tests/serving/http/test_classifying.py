"""POST /v1/classify answers as the model does in Python, and says what is wrong with a request."""

import httpx
import pytest

from unmask.files import appearing
from unmask.model.answer import Answer
from unmask.model.checkpoint import load
from unmask.model.predictor import Predictor, write_predictor
from unmask.model.reading import Trained

pytestmark = pytest.mark.slow
TEXTS = ["The dog", "lazy fox", "a", "Once upon a time"]


@pytest.fixture
def tuned(masked, tmp_path):
    def make(answer, trained=None):
        with appearing(tmp_path / "tuned") as draft:
            write_predictor(draft, Predictor(masked, answer, trained=trained), {})
        return load(tmp_path / "tuned")

    return make


def test_labels_are_those_of_python(serve, tuned):
    model = tuned(Answer(("bad", "good")))
    ours = Predictor.load(model.folder).predict(TEXTS)
    with httpx.Client(base_url=serve(model), timeout=120) as client:
        found = client.post("/v1/classify", json={"texts": TEXTS}).json()
        assert found["labels"] == client.get("/v1/models").json()["data"][0]["classes"] == ["bad", "good"]
        for one, said in zip(found["data"], ours, strict=True):
            assert one["label"] == said.label
            assert one["probabilities"] == pytest.approx(said.probabilities, abs=1e-5)
            assert one["number"] is None
        assert [one["index"] for one in found["data"]] == [0, 1, 2, 3]
        pair = client.post("/v1/classify", json={"texts": [["The dog", "lazy fox"], ["a", "a" * 90]]}).json()["data"]
        assert [one["cut"] for one in pair] == [False, True]
        assert pair[0]["tokens"] == 15
        for body, message in (
            ({"texts": []}, "texts: "),
            ({"texts": [["a"]]}, "a pair of texts is a list of two"),
            ({"texts": ["a", ["a", "b"]]}, "some texts are pairs"),
            ({"texts": ["漢"]}, "no token for"),
            ({"texts": ["a"] * 33}, "one request may have 32"),
            ({"texts": ["a"], "text": "a"}, "Did you mean 'texts'"),
        ):
            answer = client.post("/v1/classify", json=body)
            assert answer.status_code == 400, answer.text
            assert message in answer.json()["error"]["message"]


def test_a_number_is_answered(serve, tuned):
    model = tuned(Answer((), 2.0, 0.5))
    with httpx.Client(base_url=serve(model), timeout=120) as client:
        (one,) = client.post("/v1/classify", json={"texts": ["The dog"]}).json()["data"]
    assert one["label"] is None
    assert one["number"] == pytest.approx(Predictor.load(model.folder).predict(["The dog"])[0].number, abs=1e-5)


def test_single_texts_for_a_classifier_of_pairs_are_refused(serve, tuned):
    model = tuned(Answer(("bad", "good")), Trained(True))
    with httpx.Client(base_url=serve(model), timeout=120) as client:
        assert client.post("/v1/classify", json={"texts": [["The dog", "a"]]}).status_code == 200
        answer = client.post("/v1/classify", json={"texts": ["The dog"]})
    assert answer.status_code == 400
    assert "was trained on pairs of texts, and these are single texts" in answer.json()["error"]["message"]


def test_a_model_that_is_no_classifier_says_so(client):
    answer = client.post("/v1/classify", json={"texts": ["a"]})
    assert answer.status_code == 400
    assert "is no classifier: serve a folder that `unmask classify` wrote" in answer.json()["error"]["message"]
    assert "POST /v1/classify" in client.get("/nowhere").json()["error"]["message"]
