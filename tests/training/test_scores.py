"""Scores equal those of scipy and scikit-learn, and are 0 where theirs are NaN."""

import warnings

import numpy as np
import pytest
from scipy import stats

from unmask.errors import UserError
from unmask.training.scores import (
    SCORES,
    accuracy,
    chosen_scores,
    f1,
    macro_f1,
    matthews,
    pearson,
    rmse,
    spearman,
)


def numbers(seed, n=50, *, ties=False):
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(2, n))
    b = a + b
    return (a.round(), b.round()) if ties else (a, b)


@pytest.mark.parametrize("ties", [False, True])
def test_correlations_equal_those_of_scipy_with_ties_too(ties):
    for seed in range(20):
        a, b = numbers(seed, ties=ties)
        assert pearson(a, b) == pytest.approx(stats.pearsonr(a, b).statistic, abs=1e-12)
        assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)


@pytest.mark.slow
def test_a_constant_prediction_scores_nothing_where_scipy_says_nan():
    a = np.arange(5.0)
    for constant in (np.zeros(5), np.full(5, 0.1)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert np.isnan(stats.spearmanr(a, constant).statistic)
        assert pearson(a, constant) == spearman(a, constant) == spearman(constant, a) == 0.0


@pytest.mark.slow
def test_scores_of_two_classes_are_their_formulas():
    for seed in range(20):
        truth, said = np.random.default_rng(seed).integers(0, 2, (2, 30))
        tp, tn = int(((truth == 1) & (said == 1)).sum()), int(((truth == 0) & (said == 0)).sum())
        fp, fn = int(((truth == 0) & (said == 1)).sum()), int(((truth == 1) & (said == 0)).sum())
        below = ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
        assert accuracy(truth, said) == pytest.approx((tp + tn) / 30)
        assert f1(truth, said) == pytest.approx(2 * tp / (2 * tp + fp + fn))
        assert matthews(truth, said) == pytest.approx((tp * tn - fp * fn) / below)


@pytest.mark.slow
def test_one_class_for_all_has_no_correlation_and_none_of_the_class_no_f1():
    truth, ones, none = np.array([0, 1, 1]), np.array([1, 1, 1]), np.array([0, 0, 0])
    assert matthews(truth, ones) == 0.0
    assert f1(truth, ones) == pytest.approx(0.8)
    assert f1(none, none) == 0.0
    assert rmse(np.array([0.0, 0.0]), np.array([3.0, 4.0])) == pytest.approx(12.5**0.5)


# Matthews and macro F1 by scikit-learn 1.9.1, and F1 of two classes, for the draws of these seeds.
RECORDED = [
    (0, 2, 0.079283887468, 0.539641943734, 0.608695652174),
    (0, 4, -0.073005514257, 0.185950854701, None),
    (1, 2, -0.111111111111, 0.444444444444, 0.388888888889),
    (1, 4, -0.082265865423, 0.188863424158, None),
]


@pytest.mark.parametrize(("seed", "classes", "correlation", "mean_f1", "of_two"), RECORDED)
def test_scores_equal_the_recorded_ones_of_scikit_learn(seed, classes, correlation, mean_f1, of_two):
    truth, said = np.random.default_rng(seed).integers(0, classes, (2, 40))
    assert matthews(truth, said) == pytest.approx(correlation, abs=1e-11)
    assert macro_f1(truth, said) == pytest.approx(mean_f1, abs=1e-11)
    assert of_two is None or f1(truth, said) == pytest.approx(of_two, abs=1e-11)


@pytest.mark.slow
def test_scores_equal_those_of_scikit_learn():
    theirs = pytest.importorskip("sklearn.metrics")
    for seed in range(20):
        for classes in (2, 4):
            truth, said = np.random.default_rng(seed).integers(0, classes, (2, 40))
            assert matthews(truth, said) == pytest.approx(theirs.matthews_corrcoef(truth, said))
            assert macro_f1(truth, said) == pytest.approx(theirs.f1_score(truth, said, average="macro"))
            if classes == 2:
                assert f1(truth, said) == pytest.approx(theirs.f1_score(truth, said))


@pytest.mark.slow
def test_scores_are_chosen_by_what_is_predicted():
    assert chosen_scores((), "two classes")[0] == "accuracy"
    assert chosen_scores(("f1", "accuracy", "f1"), "two classes") == ("f1", "accuracy")
    with pytest.raises(UserError, match=r"no metric is called 'acuracy'. Did you mean 'accuracy'"):
        chosen_scores(("acuracy",), "two classes")
    with pytest.raises(UserError, match=r"f1 does not score several classes. Those that do: accuracy, macro_f1"):
        chosen_scores(("f1",), "several classes")
    with pytest.raises(UserError, match=r"accuracy does not score numbers. Those that do: pearson"):
        chosen_scores(("accuracy",), "numbers")
    assert SCORES["rmse"].better(1.0, 2.0)
    assert not SCORES["accuracy"].better(0.5, 0.5)
