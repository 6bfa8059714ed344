"""Text in 27 letters; the detokenizers of benchmarks are tested against the reference's output elsewhere."""

import string

from unmask.studies.corpus import documents_of
from unmask.text.corpus.detokenize import detokenizer


def test_letters_writes_text_as_text8_does():
    text = "In 1905, <unk>'s paper — “Über” was 3 @,@ 000 words.\n\nIt ended."
    assert detokenizer("letters")(text) == (
        "in one nine zero five s paper ber was three zero zero zero words it ended"
    )


def test_letters_leaves_27_characters_and_single_spaces(tmp_path):
    (tmp_path / "a.txt").write_text("A1\tb\n\n«C»  d-e…\n<|endoftext|>\n4 !\n<|endoftext|>\n?!\n")
    found = list(documents_of({"path": "a.txt", "detokenize": "letters"}, tmp_path))
    assert found == ["a one b c d e", "four"]
    assert set("".join(found)) <= set(string.ascii_lowercase + " ")
