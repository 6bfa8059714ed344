"""Sequences that repeat the name or the letters of an earlier one are counted, over files and line breaks."""

from unmask.cli.main import main
from unmask.text.corpus.repeats import Repeats, repeats
from unmask.text.corpus.sources import gather


def test_names_and_letters_that_occur_again_are_counted_over_all_files(tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.text.corpus.documents.PIECE", 4)
    (tmp_path / "a.fa").write_text(">one x\nACGTACGT\n>two\nAC\nGTac\nGT\n>one y\nGGGG\n")
    (tmp_path / "b.fa").write_text(">three\nGGGG\n>four\nTTTT\n")
    (tmp_path / "c.txt").write_text("GGGG")
    with gather(tmp_path) as sources:
        found = repeats(sources)
    assert found == Repeats(5, names=1, letters=2)
    assert [line.split(":")[0] for line in found.lines()] == [
        "1 of 5 sequences have the name of an earlier one",
        "2 of 5 sequences have the letters of an earlier one",
    ]
    assert not list(Repeats(5, 0, 0).lines())


def test_prepare_and_train_say_so(tmp_path, capsys):
    path = tmp_path / "a.fa"
    path.write_text(">one\nACGTACGTACGT\n>one\nACGTACGTACGT\n" * 2)
    assert main(["prepare", str(path), "--out", str(tmp_path / "p"), "--tokenizer", "dna", "--workers", "1"]) == 0
    assert "warning: 3 of 4 sequences have the letters of an earlier one" in capsys.readouterr().err
    line = ["train", "--data", str(path), "--out", str(tmp_path / "t"), "--tokenizer", "dna", "--length", "500"]
    assert main([*line, "--pack", "windows", "--valid", "0"]) == 2  # after the data is read
    assert "warning: 3 of 4 sequences have the name of an earlier one" in capsys.readouterr().err
