"""Data sets on the hub: their names, ranges of rows, and the commit, asked of a small hub of our own."""

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from unmask import hub
from unmask.errors import UserError
from unmask.text.corpus.dataset import PARQUET, DataSet, parse_data_set
from unmask.text.corpus.sources import gather

COMMIT = "8d52bfd3cc2819fc1166dbb8144c328e2690de3e"
FILES = ["README.md", "pubmed/train/0000.parquet", "pubmed/train/0001.parquet", "arxiv/train/0000.parquet"]


class Answers(BaseHTTPRequestHandler):
    """What the hub says about a data set, in main and in the branch of tables."""

    def do_GET(self):
        known = {"/api/datasets/owner/papers", "/api/datasets/owner/papers/revision/refs%2Fconvert%2Fparquet"}
        known |= {f"/api/datasets/owner/papers/revision/{COMMIT}"}
        path = self.path.partition("?")[0]
        siblings = [{"rfilename": name} for name in (FILES if "revision" in path else FILES[:1])]
        body = json.dumps({"id": "owner/papers", "sha": COMMIT, "siblings": siblings}).encode()
        self.send_response(200 if path in known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def own_hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    hub.announce.cache_clear()
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("hf:owner/set", DataSet("owner/set")),
        ("hf:owner/set@test", DataSet("owner/set", split="test")),
        ("hf:owner/set:en@train[:10]", DataSet("owner/set", "en", "train[:10]")),
        ("hf:owner/set:en@test#refs/convert/parquet", DataSet("owner/set", "en", "test", PARQUET)),
        ("hf:set#v1.0", DataSet("set", revision="v1.0")),
    ],
)
def test_a_name_says_config_split_rows_and_revision(name, data):
    assert parse_data_set(name) == data
    assert parse_data_set(data.name) == data


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:", "names no data set"),
        ("hf:owner/set#", "names no revision after its #.*hf:owner/set#main"),
        ("hf:owner/set#v1@test", "stands at the end"),
        ("hf:owner/set@train[1]", "is not a split"),
    ],
)
def test_a_name_that_says_nothing_is_refused(name, message):
    with pytest.raises(UserError, match=message):
        parse_data_set(name)


def test_a_split_may_be_a_range_of_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "set"
    data.mkdir()
    (data / "train.jsonl").write_text("".join(json.dumps({"text": str(i)}) + "\n" for i in range(6)))
    for asked, expected in (("[:2]", "01"), ("[2:]", "2345"), ("[1:3]", "12"), ("", "012345")):
        rows = parse_data_set(f"hf:{data}@train{asked}").rows()
        assert "".join(row["text"] for row in rows) == expected


def test_a_name_without_a_revision_gets_its_commit_and_says_how_to_have_it_again(own_hub, caplog):
    with caplog.at_level(logging.WARNING), gather("hf:owner/papers:pubmed") as [source]:
        assert source.name == f"hf:owner/papers:pubmed@train#{COMMIT}"
        assert f"write hf:owner/papers:pubmed@train#{COMMIT}" in caplog.text
        caplog.clear()
        with gather(source.name) as [again]:
            assert again.sha256() == source.sha256()
        with gather("hf:owner/papers:arxiv#refs/convert/parquet") as [other]:
            assert other.name.endswith(f"#{COMMIT}")
            assert other.sha256() != source.sha256()
    assert not caplog.text


def test_the_tables_of_a_former_script_are_those_of_its_config_and_split_alone(own_hub):
    data = parse_data_set("hf:owner/papers:pubmed#refs/convert/parquet").pinned()
    addresses = [f"hf://datasets/owner/papers@{COMMIT}/pubmed/train/000{i}.parquet" for i in (0, 1)]
    assert data._tables("train") == addresses
    assert data._tables("test") == []


def test_a_data_set_that_does_not_exist_is_named(own_hub):
    with pytest.raises(UserError, match="cannot read the data set 'hf:owner/nothing@train' from the hub"):
        parse_data_set("hf:owner/nothing").pinned()
