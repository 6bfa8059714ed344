"""`unmask chat`: lines from a pipe are messages, what was said is given, commands, errors; and a published model."""

import io
import shutil

import openai
import pytest
from rich.console import Console

import unmask
from serving.models import TEXT, network
from serving.servers import serving
from unmask.cli import chat
from unmask.cli.main import main
from unmask.model.checkpoint import load, save
from unmask.text.corpus.turns import Turn
from unmask.text.tokens.vocabulary import byte

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


def saved(folder, text):
    tokenizer = byte()
    made = network(tokenizer.size)
    return save(folder, made, mask=tokenizer.mask, tokenizer=tokenizer, settings={"text": text})


@pytest.fixture(scope="module")
def talking(tmp_path_factory):
    """A model of conversations with random weights."""
    return saved(tmp_path_factory.mktemp("chat") / "model", {"pack": "chat", "template": TEMPLATE})


def said(monkeypatch, capsys, folder, *lines, flags=()):
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    code = main(["chat", str(folder), "--room", "6", *flags])
    return code, *capsys.readouterr()


def drawn(folder, turns, seed):
    """What Python draws after these turns."""
    model = unmask.load(folder)
    prompt = model.layout.conversation(model.tokenizer, [Turn(*one) for one in turns])
    (found,) = unmask.sample(model, prompt=prompt, length=len(prompt) + 6, seed=seed)
    return found.text


def test_every_line_is_a_message_after_all_that_was_said(monkeypatch, capsys, talking):
    code, out, _ = said(monkeypatch, capsys, talking, "hi", "", "<|endoftext|>", flags=["--system", "S"])
    assert code == 0
    first = drawn(talking, [("system", "S"), ("user", "hi")], 0)
    talk = [("system", "S"), ("user", "hi"), ("assistant", first), ("user", "<|endoftext|>")]
    assert out == first + "\n" + drawn(talking, talk, 2) + "\n"


def test_commands_begin_anew_take_back_and_end(monkeypatch, capsys, talking):
    code, out, error = said(monkeypatch, capsys, talking, "a", "/undo", "b", "/new", "c", "/x", "/quit", "d")
    assert code == 0
    assert out == "".join(drawn(talking, [("user", text)], i) + "\n" for text, i in (("a", 0), ("b", 2), ("c", 4)))
    assert "there is no /x" in error


def test_the_oldest_messages_are_forgotten_and_a_long_one_is_refused(monkeypatch, capsys, talking):
    length = unmask.load(talking).spec.length
    code, out, error = said(monkeypatch, capsys, talking, "x" * (length - 12), "y" * (length - 12))
    assert code == 0
    assert "forgotten" in error
    assert out.splitlines()[-1:] == drawn(talking, [("user", "y" * (length - 12))], 1).splitlines()[-1:]
    code, _, error = said(monkeypatch, capsys, talking, "x" * length)
    assert code == 2
    assert "write less" in error


def test_a_terminal_shows_the_answer_out_of_masks(talking):
    model = load(talking)
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    settings = chat.Settings(str(talking), room=6, pace=0.05)
    answer = chat.draw_answer(model, [Turn("user", "hidden")], settings, 0, screen)
    shown = screen.file.getvalue()
    assert "masks left" in shown
    assert "░" in shown
    assert "hidden" not in shown  # the prompt
    assert answer == drawn(talking, [("user", "hidden")], 0)


def test_a_model_without_turns_says_what_to_do(monkeypatch, capsys, tmp_path):
    folder = saved(tmp_path / "model", {"pack": "stream"})
    code, _, error = said(monkeypatch, capsys, folder, "a")
    assert code == 2
    assert "--template roles" in error


def test_a_published_template_is_used_for_messages_only(monkeypatch, capsys, talking, tmp_path):
    """A model with a template beside it, trained otherwise: `sample` continues, `chat` and server answer."""
    folder = saved(tmp_path / "model", {"pack": "stream"})
    shutil.copy(talking / "chat_template.jinja", folder)
    assert said(monkeypatch, capsys, folder, "hi")[1] == drawn(talking, [("user", "hi")], 0) + "\n"
    model = load(folder)
    assert not model.layout.answers
    with serving(model) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client:
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "seed": 0}
        made = client.chat.completions.create(**asked)
        assert made.choices[0].message.content == drawn(talking, [("user", "hi")], 0)
        parts = [one.choices[0].delta.content or "" for one in client.chat.completions.create(**asked, stream=True)]
        assert "".join(parts) == made.choices[0].message.content
        with pytest.raises(openai.BadRequestError, match="nothing is left to fill"):
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": TEXT * 3}])
        (folder / "chat_template.jinja").write_text(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
        )
        del model.__dict__["talker"]
        with pytest.raises(openai.BadRequestError, match="may never end"):
            client.chat.completions.create(**asked)
