import pytest
import torch

import unmask
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.processes import device
from unmask.processes.device import compute_type, device_of, small_floats, try_product

CPU = torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "command",
    [
        ["sample", "stories"],
        ["infill", "stories", "a [1]"],
        ["evaluate", "stories", "nowhere.txt"],
        ["serve", "stories"],
        ["train", "--data", "nowhere.txt", "--out", "{out}"],
    ],
    ids=lambda command: command[0],
)
def test_a_device_that_is_absent_is_refused_before_anything_else(command, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([*(one.format(out=out) for one in command), "--device", "cuda"]) == 2
    assert "there is no device 'cuda'" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a GPU")
def test_without_a_gpu_auto_is_the_cpu_in_float32():
    assert device_of() == CPU
    assert compute_type("auto", CPU) == torch.float32
    assert compute_type("auto", torch.device("cuda")) == torch.bfloat16
    with pytest.raises(UserError, match="no type of numbers is called 'int8'"):
        compute_type("int8", CPU)


def test_a_type_that_kills_a_child_process_is_refused_and_the_trial_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(device, "TRIAL", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    small_floats.cache_clear()
    try:
        with pytest.raises(
            UserError, match=r"bfloat16 does not work on this CPU: a trial died with SIGILL\. Use --dtype"
        ):
            compute_type("bfloat16", CPU)
        monkeypatch.setattr(device, "TRIAL", "raise SystemExit(1)")
        small_floats.cache_clear()
        assert "SIGILL" in small_floats("bfloat16")  # from the file
    finally:
        small_floats.cache_clear()
    monkeypatch.setattr(device, "TRIAL", "raise ValueError('no such thing')")
    assert try_product("float16") == "ValueError: no such thing"


def test_a_loaded_network_multiplies_in_the_type_that_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if small_floats("bfloat16"):
        pytest.skip("this CPU has no bfloat16")
    x = torch.randint(0, 100, (1, 16))
    exact, rough = (unmask.load("stories", dtype=dtype).log_probs(x) for dtype in ("float32", "bfloat16"))
    assert exact.dtype == rough.dtype == torch.float32
    hidden = x == unmask.load("stories").mask
    assert not hidden.any()
    masked = torch.full_like(x, unmask.load("stories").mask)
    exact, rough = (unmask.load("stories", dtype=dtype).log_probs(masked) for dtype in ("float32", "bfloat16"))
    apart = (exact.exp() - rough.exp()).abs().max()
    assert 0 < apart < 0.05


def test_training_in_float16_is_refused(capsys):
    assert main(["train", "--dtype", "float16", "--data", "a", "--out", "b"]) == 2
    assert "underflow" in " ".join("".join(capsys.readouterr()).split())
