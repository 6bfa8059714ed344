"""Which texts a trial learns from: held out by seed, by folds or by files; bad labels are refused."""

import pytest

from unmask.errors import UserError
from unmask.text.corpus.examples import Columns
from unmask.training.split import Split, gather_labelled, parts_of, repeat_lines

pytestmark = pytest.mark.slow


def data(folder, labels, *, name="a.csv", number=False, split=None, **files):
    (folder / name).write_text("text,label\n" + "".join(f"t{i},{label}\n" for i, label in enumerate(labels)))
    for other, some in files.items():
        (folder / f"{other}.csv").write_text("text,label\n" + "".join(f"v{i},{one}\n" for i, one in enumerate(some)))
    return gather_labelled(str(folder / name), Columns(), split or Split(), number=number)


def texts(some):
    return [one.text for one in some]


def test_texts_that_occur_more_than_once_are_counted_and_those_with_several_labels_apart(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,1\nb,0\na,1\nc,0\nc,1\nc,1\nd,0\n")
    first, second = repeat_lines(gather_labelled(str(tmp_path / "a.csv"), Columns(), Split(), number=False))
    assert first.startswith("2 texts occur more than once, 5 times in all")
    assert second.startswith("1 of them occur with different labels")
    assert not list(repeat_lines(data(tmp_path, ["1", "0", "1"])))


def test_labels_are_sorted_as_numbers_if_all_are(tmp_path):
    assert data(tmp_path, ["b", "a", "b"]).answer.labels == ("a", "b")
    assert data(tmp_path, ["10", "9", "-1", "9"]).answer.labels == ("-1", "9", "10")
    assert data(tmp_path, ["10", "9", "x"]).answer.labels == ("10", "9", "x")


def test_a_seed_holds_out_texts_of_its_own_and_the_same_ones_again(tmp_path):
    found = data(tmp_path, ["a", "b"] * 50)
    one, again, other = (parts_of(found, Split(), number=0, seed=seed) for seed in (1, 1, 2))
    assert len(one.valid) == 10
    assert sorted(texts(one.train) + texts(one.valid)) == sorted(texts(found.splits["train"]))
    assert texts(one.valid) == texts(again.valid)
    assert texts(one.valid) != texts(other.valid)


def test_folds_hold_out_every_text_once(tmp_path):
    found, split = data(tmp_path, ["a", "b"] * 8), Split(folds=5)
    held = [texts(parts_of(found, split, number=k, seed=7 + k).valid) for k in range(5)]
    assert sorted(text for fold in held for text in fold) == sorted(texts(found.splits["train"]))
    with pytest.raises(UserError, match=r"trial 6 has no fold of its own: --seeds may be 5 at most"):
        parts_of(found, split, number=5, seed=1)


def test_some_random_rows_are_the_same_for_every_seed(tmp_path):
    found, split = data(tmp_path, ["a", "b"] * 50, valid=["a", "b"], split=Split()), Split(rows=10)
    found.splits["valid"] = found.splits["train"][:2]
    one, other = (parts_of(found, split, number=0, seed=seed) for seed in (1, 2))
    assert texts(one.train) == texts(other.train)
    assert len(one.train) == 10


def test_files_of_a_folder_are_its_splits(tmp_path):
    for name, label in (("train", "a"), ("dev", "b"), ("test", "a")):
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{name},a\nother,{label}\n" + "more,b\n")
    found = gather_labelled(str(tmp_path), Columns(), Split(), number=False)
    parts = parts_of(found, Split(), number=0, seed=1)
    assert [texts(one)[0] for one in (parts.train, parts.valid, parts.test)] == ["train", "dev", "test"]
    with pytest.raises(UserError, match=r"no folds: leave out --folds"):
        parts_of(found, Split(folds=2), number=0, seed=1)


def test_numbers_have_a_mean_and_a_spread(tmp_path):
    answer = data(tmp_path, ["1", "2.5", "4"], number=True).answer
    assert answer.labels == ()
    assert (answer.center, answer.spread) == pytest.approx((2.5, 1.5**0.5))


@pytest.mark.parametrize(
    "labels, number, message",
    [
        (["a", "a"], False, r"all 2 training texts of .* have the label 'a': nothing to learn"),
        (["2", "2"], True, r"all 2 training texts have the number 2: nothing to learn"),
        (["1", "x"], True, r"line 3 of .*the label 'x' is not a number; leave out --number"),
        ([str(i / 7) for i in range(60)], False, r"60 different labels, all of them numbers: give --number"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused(tmp_path, labels, number, message):
    with pytest.raises(UserError, match=message):
        data(tmp_path, labels, number=number)


def test_a_label_that_only_the_validation_texts_have_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"line 2 of .*valid.csv: the label 'c' was not in the training data: a, b"):
        data(tmp_path, ["a", "b"], valid=["c"], split=Split(valid=str(tmp_path / "valid.csv")))


def test_a_benchmark_without_its_training_file_says_which_one_to_add(tmp_path):
    folder = tmp_path / "glue" / "QNLI"
    folder.mkdir(parents=True)
    (folder / "dev.tsv").write_text("index\tquestion\tsentence\tlabel\n0\ta\tb\tentailment\n")
    with pytest.raises(UserError, match=r"QNLI has no training texts at hand.* put its train.tsv into .*glue/QNLI"):
        gather_labelled("qnli", Columns(), Split(data_root=str(tmp_path)), number=False)


def test_what_is_neither_file_nor_benchmark_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(UserError, match=r"there is no file or folder sst-3, and no benchmark is called 'sst-3'"):
        gather_labelled("sst-3", Columns(), Split(), number=False)
    with pytest.raises(UserError, match=r"has no training texts: train.jsonl"):
        gather_labelled(str(tmp_path), Columns(), Split(), number=False)
    with pytest.raises(UserError, match=r"too few texts"):
        parts_of(data(tmp_path, ["a", "b"]), Split(held_out=0.99), number=0, seed=1)
    for wrong in ({"held_out": 1.0}, {"folds": 1}, {"rows": -1}):
        with pytest.raises(UserError, match=r"--(held-out|folds|rows) must"):
            Split(**wrong)
