"""evaluate and sample under torchrun: two processes say what one says."""

import json

import pytest

import tiny
from forked import ranks

pytestmark = pytest.mark.slow


def ran(*arguments, processes=1):
    """What the processes of one command print."""
    done = [process.finish() for process in ranks(processes, *arguments, TOKENIZERS_PARALLELISM="false")]
    assert all(one.returncode == 0 for one in done), [one.stderr for one in done]
    return "".join(one.stdout for one in done)


def test_two_processes_measure_what_one_measures(tmp_path):
    tiny.checkpoint(tmp_path / "mdlm")
    (tmp_path / "text.txt").write_text("abba cab. bad, cafe\n\n" * 9)
    ask = ["evaluate", tmp_path / "mdlm", tmp_path / "text.txt", "--json", "--passes", 3, "--batch-tokens", 48]
    one, two = (
        json.loads(ran(*ask, "--write", tmp_path / f"{n}.jsonl", "--each-token", processes=n)) for n in (1, 2)
    )
    for told in (one, two):
        told.pop("seconds")
    assert (one["record"].pop("processes"), two["record"].pop("processes")) == (1, 2)
    one["record"].pop("machine"), two["record"].pop("machine")  # torchrun sets the number of threads
    assert one == two
    assert (tmp_path / "1.jsonl").read_text() == (tmp_path / "2.jsonl").read_text()


def test_two_processes_draw_what_one_draws(tmp_path):
    tiny.checkpoint(tmp_path / "mdlm")
    ask = ["sample", tmp_path / "mdlm", "-n", 5, "--json", "--sampler", "ancestral", "--steps", 6, "--batch", 2]
    one, two = ([json.loads(line) for line in ran(*ask, processes=n).splitlines()] for n in (1, 2))
    for told in (*one, *two):
        told.pop("seconds")
    assert len(one) == 5
    assert one == two
