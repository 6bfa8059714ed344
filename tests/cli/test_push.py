"""What is published loads as the same model, has a card, and names no folder of the machine it was trained on."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
import yaml
from huggingface_hub import ModelCardData

import tiny
import unmask
from unmask.model.checkpoint import load, save

COMMIT = "3" * 40


def run_folder(folder):
    """A run with a validated checkpoint, as `unmask train` leaves it."""
    settings = {
        "data": "/home/somebody/texts",
        "out": "/home/somebody/runs/mine",
        "steps": 7,
        "text": {"pack": "rows", "tokenizer": "/home/somebody/secret/words", "intervals": ["/home/somebody/a.bed"]},
    }
    settings["sampling"] = {"sampler": "entropy", "top_p": 0.9}
    made = tiny.model(folder / "begun")
    best = save(
        folder / "best",
        made.network,
        mask=made.mask,
        tokenizer=made.tokenizer,
        settings=settings,
        step=7,
        ema=True,
    )
    (best / "training.json").write_text(
        json.dumps({"step": 7, "best_step": 7, "best": 2.5, "error": 0.125, "format": 1})
    )
    return folder


def same(one, other):
    row = torch.full((1, tiny.LENGTH), one.mask)
    assert torch.equal(one.log_probs(row), other.log_probs(row))
    assert (one.objective, one.step, one.ema, one.sampling) == (
        other.objective,
        other.step,
        other.ema,
        other.sampling,
    )
    assert one.text_tokenizer().fingerprint == other.text_tokenizer().fingerprint


def test_a_folder_to_publish_is_the_same_model_with_a_card(tmp_path, command, capsys, monkeypatch):
    run = run_folder(tmp_path / "run")
    code, out, _ = command("push", run, "--folder", tmp_path / "mine", "--license", "mit")
    assert code == 0
    assert f"publish it later with: unmask push {tmp_path / 'mine'} --to" in out
    model = load(tmp_path / "mine")
    assert model.self_test is not None
    same(model, load(run))
    card = (tmp_path / "mine" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: unmask\n")
    front = yaml.safe_load(card.split("---")[1])
    assert front["license"] == "mit"
    (entry,) = front["model-index"]
    assert entry["name"] == "mine"
    (metric,) = entry["results"][0]["metrics"]
    error = {"standard_error": 0.125}
    assert metric == {"type": "nats_per_token", "value": 2.5, "name": model.objective.means, "args": error}
    (result,) = ModelCardData(**front).eval_results  # as the hub reads it
    assert (result.metric_value, result.metric_args, result.task_type) == (2.5, error, "text-generation")
    for line in (
        f"| parameters | {model.num_parameters:,} |",
        "| training | 7 steps, EMA weights |",
        "| validation | at most 2.500 ± 0.125 nats per token, perplexity 12.18 |",
        'sampler = "entropy"',
        'pack = "rows"',
        'unmask.load("mine")',
    ):
        assert line in card
    monkeypatch.chdir(tmp_path)
    exec(card.split("```python\n")[1].split("```")[0], {})
    assert len(capsys.readouterr().out) > 2, "the card's lines run"
    everything = b"".join(path.read_bytes() for path in (tmp_path / "mine").iterdir())
    assert b"somebody" not in everything
    assert b'"data": "texts"' in everything
    assert b'tokenizer = "words"' in everything


@pytest.mark.parametrize("name", ["README.md", "NOTICE", "LICENSE"])
def test_a_file_beside_the_model_that_is_a_link_to_elsewhere_is_not_published(tmp_path, command, name):
    tiny.checkpoint(tmp_path / "made")
    (tmp_path / "secret").write_text("the key")
    (tmp_path / "made" / name).symlink_to(tmp_path / "secret")
    code, _, err = command("push", tmp_path / "made", "--folder", tmp_path / "out")
    assert (code, "outside its folder" in err) == (2, True), err
    assert not (tmp_path / "out").exists()


def test_files_of_other_programs_are_published_without_the_place_they_were_made_at(tmp_path, command):
    tiny.checkpoint(tmp_path / "made")
    file = tmp_path / "made" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "_name_or_path": "/home/somebody/bert"}))
    assert command("push", tmp_path / "made", "--folder", tmp_path / "out")[0] == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["_name_or_path"] == "bert"


@pytest.mark.slow
def test_a_published_classifier_classifies(tmp_path, command):
    tiny.checkpoint(tmp_path / "model")
    lines = [f"{'ab' if i % 3 else 'cd'}{'efgh'[i % 4]},{'good/fine' if i % 3 else 'bad'}\n" for i in range(30)]
    (tmp_path / "reviews.csv").write_text("text,label\n" + "".join(lines))
    tuned = ("classify", tmp_path / "model", tmp_path / "reviews.csv", "--out", tmp_path / "mood", "--epochs", "1")
    assert command(*tuned)[0] == 0
    assert command("push", tmp_path / "mood", "--folder", tmp_path / "out")[0] == 0
    before, after = (unmask.Predictor.load(tmp_path / name).predict(["abe", "cdf"]) for name in ("mood", "out"))
    assert before == after
    card = (tmp_path / "out" / "README.md").read_text()
    assert "unmask classify out texts.csv --predict" in card
    assert "unmask sample" not in card
    assert str(tmp_path).encode() not in b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())


def test_a_card_that_exists_is_kept(tmp_path, command):
    tiny.checkpoint(tmp_path / "made")
    (tmp_path / "made" / "README.md").write_text("written by hand")
    (tmp_path / "made" / "NOTICE").write_text("data by others")
    assert command("push", tmp_path / "made", "--folder", tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / "README.md").read_text() == "written by hand"
    assert (tmp_path / "out" / "NOTICE").read_text() == "data by others"
    code, _, err = command("push", tmp_path / "made", "--folder", tmp_path / "other", "--license", "mit")
    assert (code, "has a card of its own" in err) == (2, True)


def test_what_cannot_be_published_is_refused_before_anything_is_written(tmp_path, command):
    tiny.checkpoint(tmp_path / "made")
    for given, message in (
        ([], "where should it go?"),
        (["--to", "mine"], "written owner/name, not 'mine'"),
        (["--folder", tmp_path / "out", "--license", "mit\nx: y"], "is not the identifier of a licence"),
        (["--folder", tmp_path / "made"], "exists already"),
    ):
        code, _, err = command("push", tmp_path / "made", *given)
        assert (code, message in err) == (2, True), err
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


class Hub(BaseHTTPRequestHandler):
    """A hub that takes commits, and says whether it has a card."""

    has_card, asked, files = False, [], {}

    def answer(self, body, status=200, **headers):
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_HEAD(self):
        if self.has_card:
            self.answer({}, ETag='"x"', X_Repo_Commit=COMMIT)
        else:
            self.answer({}, 404, X_Error_Code="EntryNotFound")

    def do_GET(self):
        self.answer({"id": "me/mine", "sha": "0" * 40, "siblings": []})

    def do_POST(self):
        chunked = self.headers.get("Transfer-Encoding") == "chunked"
        sent = self.chunks() if chunked else self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/repos/create"):
            self.asked.append(json.loads(sent))
            self.answer({"url": f"http://{self.headers['Host']}/me/mine"})
        elif "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(sent)["files"]]
            self.answer({"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]})
        else:
            lines = [json.loads(line) for line in sent.splitlines()]
            for line in lines[1:]:
                self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            address = f"http://{self.headers['Host']}/me/mine/commit/{COMMIT}"
            self.answer({"success": True, "commitOid": COMMIT, "commitUrl": address})

    def chunks(self):
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def log_message(self, *arguments):
        pass


@pytest.fixture
def own_hub(monkeypatch, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    here, files = f"http://127.0.0.1:{server.server_port}", "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", here)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", here + files)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Hub, "asked", [])
    monkeypatch.setattr(Hub, "files", {})
    yield Hub
    server.shutdown()
    server.server_close()


def test_a_published_checkpoint_is_the_folder_on_the_hub(own_hub, tmp_path, command):
    run = run_folder(tmp_path / "run")
    code, out, err = command("push", run, "--to", "me/mine", "--private")
    assert code == 0, err
    assert out.strip() == f'published: unmask.load("me/mine#{COMMIT}")'
    assert own_hub.asked[0].get("visibility") == "private" or own_hub.asked[0].get("private") is True
    (tmp_path / "again").mkdir()
    for name, content in own_hub.files.items():
        (tmp_path / "again" / name).write_bytes(content)
    same(load(tmp_path / "again"), load(run))
    assert 'unmask.load("me/mine")' in own_hub.files["README.md"].decode()


def test_a_card_on_the_hub_gives_way_only_to_the_checkpoints_own(own_hub, tmp_path, command, monkeypatch):
    monkeypatch.setattr(Hub, "has_card", True)
    tiny.checkpoint(tmp_path / "made")
    assert command("push", tmp_path / "made", "--to", "me/mine")[0] == 0
    assert "model.safetensors" in own_hub.files
    assert "README.md" not in own_hub.files
    (tmp_path / "made" / "README.md").write_text("written by hand")
    assert command("push", tmp_path / "made", "--to", "me/mine")[0] == 0
    assert own_hub.files["README.md"] == b"written by hand"


def test_without_a_network_the_folder_is_kept_and_the_command_is_said(tmp_path, command, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    tiny.checkpoint(tmp_path / "made")
    code, _, err = command("push", "made", "--to", "me/mine")
    assert code == 2
    assert "could not publish me/mine" in err
    assert "`unmask push me--mine --to me/mine`" in err
    same(load("me--mine"), load("made"))
    assert command("push", "me--mine", "--to", "me/mine")[0] == 2, "the advice can be followed"
