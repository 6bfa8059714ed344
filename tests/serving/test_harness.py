"""lm-evaluation-harness on a small local task. Collected only where lm-eval is installed (conftest.py)."""

import json
import math
from dataclasses import replace

import lm_eval
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

import tiny
from model.published import complete
from unmask.errors import UserError
from unmask.model.passes.whole import logits_at
from unmask.serving.harness import Harness, greedy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # what other libraries warn of while the harness loads them
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("harness")
    for objective in ("ar", "mdlm"):
        tiny.checkpoint(root / objective, objective=objective)
    return root


def asked(kind, *arguments):
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def test_a_continuation_costs_what_the_network_says(folder):
    one = Harness(str(folder / "ar"))
    ids = [one.tokenizer.bos, *one.tokenizer.encode("abc"), *one.tokenizer.encode(" dab")]
    x = torch.tensor([ids])
    rows = torch.arange(4, len(ids))
    log_p = logits_at(one.model.network, x, torch.zeros(1), rows)
    log_p[:, one.model.mask] = -torch.inf
    expected = float(log_p.log_softmax(1).gather(1, x[0, rows, None]).sum())
    (found,) = one.loglikelihood([asked("loglikelihood", "abc", " dab")])
    assert found[0] == pytest.approx(expected, rel=1e-5)
    (moved,) = one.loglikelihood([asked("loglikelihood", "abc ", "dab")])  # the space belongs to what follows
    assert moved[0] == pytest.approx(expected, rel=1e-5)
    assert one.loglikelihood([asked("loglikelihood", "abc", "")]) == [(0.0, True)]


def test_the_bound_of_a_masked_model_is_near_its_mean_over_orders(folder):
    by_count, by_order = (
        Harness(str(folder / "mdlm"), passes=400),
        Harness(str(folder / "mdlm"), estimator="order", passes=100),
    )
    request = [asked("loglikelihood", "ab", " cd")]
    (first,), (second,) = by_count.loglikelihood(request), by_order.loglikelihood(request)
    assert first[0] == pytest.approx(second[0], rel=0.05)


@pytest.mark.parametrize("objective", ["ar", "mdlm"])
def test_greedy_is_told_for_the_greedy_continuation_and_no_other(folder, objective):
    one = Harness(str(folder / objective))
    passage = one.row("abc", " ab")
    ids = passage.tokens.copy()
    for at in range(int(passage.frozen.sum()), len(ids)):  # write the likeliest token, place by place
        x = torch.from_numpy(ids)[None].clone()
        if objective == "mdlm":
            x[:, at:] = one.model.mask
        logits = logits_at(one.model.network, x, torch.zeros(1), torch.tensor([at]))
        logits[:, one.model.mask] = -torch.inf
        ids[at] = int(logits.argmax())
    assert greedy(one.model, replace(passage, tokens=ids))
    ids[-1] = (ids[-1] + 1) % one.model.mask
    assert not greedy(one.model, replace(passage, tokens=ids))


def test_a_long_text_is_scored_whole_and_each_by_itself(folder):
    one = Harness(str(folder / "ar"))
    text = "abc def. " * 5
    long, short, none = one.loglikelihood_rolling(
        [asked("loglikelihood_rolling", each) for each in (text, text[:9], "")]
    )
    (again,) = one.loglikelihood_rolling([asked("loglikelihood_rolling", text[:9])])
    assert short == pytest.approx(again, rel=1e-6)
    assert none == 0
    assert -len(text) * 20 < long < short < 0


def test_generation_ends_before_the_first_stop(folder):
    for objective in ("ar", "mdlm"):
        one = Harness(str(folder / objective))
        (whole,) = one.generate_until([asked("generate_until", "abc", {"until": [], "max_gen_toks": 6})])
        assert whole
        stop = whole[len(whole) // 2]
        (cut,) = one.generate_until([asked("generate_until", "abc", {"until": [stop, "zz"], "max_gen_toks": 6})])
        assert cut == whole[: whole.index(stop)]


@pytest.mark.parametrize(("name", "dialect"), [("dream", ""), ("sdar", ""), ("a2d_qwen3", "a2d-mdlm")])
def test_published_models_are_scored_and_answer(name, dialect, tmp_path):
    one = Harness(str(complete(name, tmp_path / "m", unmask_dialect=None)), passes=2, steps=None, dialect=dialect)
    first, second = one.loglikelihood([asked("loglikelihood", "AG", "LV"), asked("loglikelihood", "", "AGLV")])
    assert -40 < first[0] < 0
    assert -80 < second[0] < 0
    (text,) = one.generate_until([asked("generate_until", "AG", {"until": [], "max_gen_toks": 5})])
    assert len(text) <= 5


def test_the_harness_runs_local_tasks(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    docs = [{"question": "ab", "choices": ["cd", "ef"], "answer": i % 2, "text": "abc dab."} for i in range(4)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    for name, lines in TASKS.items():
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp_path}/docs.jsonl\n"
        (tmp_path / f"{name}.yaml").write_text(head + "test_split: test\n" + lines)
    found = lm_eval.simple_evaluate(
        model=Harness(str(folder / "mdlm"), passes=4),
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )["results"]
    assert found["small_choice"]["acc,none"] == 0.5  # the same pair, and each answer right twice
    assert 0 < math.log(found["small_text"]["byte_perplexity,none"]) < 20
    assert 0 <= found["small_answer"]["exact_match,none"] <= 1


TASKS = {
    "small_choice": """output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - metric: acc
""",
    "small_text": """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: byte_perplexity
""",
    "small_answer": """output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "cd"
generation_kwargs:
  until: ["."]
  max_gen_toks: 4
metric_list:
  - metric: exact_match
""",
}


def test_what_the_model_cannot_see_is_refused(folder):
    with pytest.raises(UserError, match="can see 12 at once"):
        Harness(str(folder / "ar")).loglikelihood([asked("loglikelihood", "a", "abc " * 5)])
