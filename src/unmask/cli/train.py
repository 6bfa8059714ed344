"""Train a model on your own texts.

The default is the best recipe we have measured (docs/results.md); configs/ has the paper's. --config FILE reads
settings from TOML; flags override them. --resume continues the run in --out with its settings, or starts it if there
is none. --minutes chooses network, batch and steps for the data and this machine.

    unmask train --data my_texts/ --out runs/mine --minutes 10
    unmask train --data my_texts/ --out runs/tuned --init runs/mine --steps 500
    unmask train --data my_texts/ --out runs/sedd --objective.name sedd --objective.schedule geometric
    torchrun --nproc-per-node 8 -m unmask train --data data/ --out runs/big --run.parallel fsdp
"""

import sys
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import nn

from unmask import settings as toml
from unmask.cli.display import Display, Silence
from unmask.cli.flags import with_flags, without_flags
from unmask.diffusion.objective import OBJECTIVES
from unmask.errors import UserError
from unmask.model import checkpoint
from unmask.model.backbone import BACKBONES, Backbone, build
from unmask.model.denoiser import Denoiser
from unmask.model.format import read_note
from unmask.model.model import Model
from unmask.model.room import check_room
from unmask.processes.device import compute_type, device_of
from unmask.processes.signals import halted, stopping
from unmask.processes.team import Team, Told, joined, said_once
from unmask.sampling.policy import POLICIES
from unmask.sampling.process import policies_of
from unmask.training import ema, state
from unmask.training.data import Data, data_folder, document_lengths, has_regions, opened, starting_spec
from unmask.training.estimate import PreviewClock, duration, matrix_rate, step_rate
from unmask.training.folder import claimed, flat
from unmask.training.loop import Diverged, Progress, State, begin, train
from unmask.training.phases import Phase, continued, phases, spec_of
from unmask.training.settings import Text, Train, settled
from unmask.training.sizes import ASIDE, packed_for, seconds_per_step, sized, tuning_encoder
from unmask.training.state import Point
from unmask.training.validation import Validation, validate
from unmask.untrusted import read_toml_table

Voice = Display | Silence
PACKED = {
    "rows": "the documents are short: one per row of {length} tokens, with its end (--text.pack stream joins them)",
    "stream": "documents are joined and cut into rows of {length} tokens (--text.pack rows: one per row)",
    "windows": "rows of {length} tokens are cut within the intervals (--text.pack stream joins them)",
    "padded": "the documents are short: one per row of {length} tokens (--text.pack wrap joins them)",
    "wrap": "documents are joined and cut into rows of {length} tokens (--text.pack padded: one per row)",
}


@dataclass(frozen=True)
class Settings:
    """The command line: the settings of a run, and where to read others from."""

    config: str = ""  # TOML file of settings; flags override it
    minutes: float = 0.0  # choose network, batch and steps for about this time; 0: the settings below
    resume: bool = False  # continue the run in --out
    given: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()  # names of the settings that flags or the file give
    train: Annotated[Train, tyro.conf.arg(name="")] = field(default_factory=Train)


def default(arguments: list[str]) -> Settings:
    """The settings before the flags: those of a run to resume or of --config, and the components that flags name."""
    config, out = option(arguments, "--config"), option(arguments, "--out")
    asked = toml.read_toml(config, Train()) if config else Train()
    out = out or asked.out
    if "--resume" in arguments and out and (Path(out) / "settings.toml").is_file():
        asked = toml.read_toml(Path(out) / "settings.toml", Train())
    for field_name, registry in (("objective", OBJECTIVES), ("model", BACKBONES)):
        name = option(arguments, f"--{field_name}.name")
        if name and name != getattr(asked, field_name).name:
            asked = replace(asked, **{field_name: registry.usual(name)})  # type: ignore[arg-type]
    given = {*flags_in(arguments), *(names_in(config) if config else ())}
    return Settings(config=config, given=tuple(sorted(given)), train=with_flags(asked, "objective", "model"))


def flags_in(arguments: list[str]) -> set[str]:
    """The names of the settings that flags give: --run.eval-every 10 gives run.eval_every."""
    flags = (argument.partition("=")[0] for argument in arguments if argument.startswith("--"))
    names = {flag.removeprefix("--").replace("-", "_") for flag in flags}
    return {f"text.{name}" if hasattr(Text, name) else name for name in names}


def names_in(config: str) -> set[str]:
    """The names of the settings in a TOML file."""
    return set(flat(read_toml_table(config)))


def option(arguments: list[str], name: str) -> str:
    """The value of an option, read before the command line is parsed as a whole."""
    for i, argument in enumerate(arguments):
        if argument == name and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return ""


def run(settings: Settings) -> None:
    for _ in walk(settings):
        pass


def walk(settings: Settings, *, quiet: bool = False) -> Iterator[Progress]:
    """A whole run, from text to checkpoints; yields after every update. A signal saves and exits."""
    asked = settled(without_flags(settings.train, "objective", "model"))
    out = Path(asked.out)
    compute_type(asked.run.dtype, device_of(asked.run.device))  # an error now rather than after the data is read
    with (
        joined(asked.run.parallel, seconds=asked.run.patience, device_name=asked.run.device) as team,
        said_once(team),
        Silence() if team.rank else Display(asked, out, world=team.world, quiet=quiet) as display,
        claimed(
            asked, display.say, resume=settings.resume, team=team, fit=partial(fitted, settings, team, display)
        ) as asked,
    ):
        display.asked, display.timed = asked, bool(settings.minutes)
        if remark := asked.objective.remark(asked.text.length):
            display.say(remark)
        data = opened(asked, data_folder(asked, out, display.say))
        if data.warning:
            display.say(f"warning: {data.warning}")
        with stopping() as stop:
            point = yield from go(asked, out, data, display, stop, team)
            number = halted(stop, team)
        if number:
            display.say(f"stopped at step {point.step}: continue with `unmask train --out {out} --resume`")
        else:
            where = out / ("best" if point.best_step else "last")
            display.say(f"done: {point.step} steps; the model is in {where}")
    if number:
        sys.exit(128 + number)


def fitted(settings: Settings, team: Team, display: Voice, asked: Train, folder: Path) -> Train:
    """The settings of a new run, with the packing that suits its data and the sizes for --minutes."""
    chosen = asked.text.pack == "auto"
    framed = starting_spec(asked).framed
    lengths, regions = document_lengths(folder), has_regions(folder)
    asked = packed_for(asked, lengths, given=settings.given, framed=framed, regions=regions)
    if framed and asked.init:
        asked = tuning_encoder(asked, given=settings.given)
    if chosen:
        display.say(PACKED[asked.text.pack].format(length=asked.text.length))
    if not settings.minutes:
        return asked
    init = checkpoint.load(state.resolved(asked.init), headed=False).spec if asked.init else None
    data = opened(asked, folder)

    def for_minutes(asked: Train, rate: float, given: Collection[str]) -> Train:
        rows, vocab = data.rows, data.tokenizer.size
        return sized(
            asked,
            minutes=settings.minutes,
            rows=rows,
            vocab=vocab,
            rate=rate,
            given=given,
            init=init,
            world=team.world,
        )

    guess = for_minutes(asked, matrix_rate() * team.world, settings.given)
    if team.world > 1:
        display.say(size_line(guess, settings.minutes))
        return guess
    # A few steps of that network tell the speed of this machine better than products of matrices.
    batches = opened(guess, folder).batches.at
    rate = step_rate(guess, batches, rows=data.rows, vocab=data.tokenizer.size, mask=data.tokenizer.mask, init=init)
    found = for_minutes(guess, rate, {*settings.given, "model.width", "optim.batch"})
    seconds = found.steps * seconds_per_step(found, rows=data.rows, vocab=data.tokenizer.size, rate=rate, init=init)
    display.say(size_line(found, seconds / 60 / (1 - ASIDE)))
    return found


def size_line(asked: Train, minutes: float) -> str:
    """What --minutes chose."""
    shape = " ".join(
        f"{name} {getattr(asked.model, name)}" for name in ("width", "blocks") if hasattr(asked.model, name)
    )
    return (
        f"chosen for about {duration(60 * minutes)}: {shape}, {asked.steps} steps of {asked.optim.batch} rows. "
        "The number of steps stays, also if the machine turns out slower."
    )


def go(
    asked: Train, out: Path, data: Data, display: Voice, stop: list[int], team: Team
) -> Generator[Progress, None, Point]:
    """Run the phases that are left."""
    done = state.steps_in(out)
    folder = state.folder_of(out, done[-1]) if done else None
    point = state.read_point(folder) if folder else Point()
    if point.step and point.step < asked.steps:
        display.resumed(point)
    for phase in phases(asked, step=point.step, began=point.began):
        if point.step >= phase.stop or halted(stop, team):
            continue
        if phase.start < point.step and folder is not None:
            current = begin(denoiser_of(asked, phase, data, folder, team), asked, team)
            point = state.restore(folder, current, team)
        else:
            current = begin(denoiser_of(asked, phase, data, folder, team), asked, team)
            # Bounds of two objectives are not comparable.
            point = replace(point, best=None, best_step=None, began=phase.start)
        display.start(current.network.spec, phase, point, data.rows)
        sampling = inherited(asked, phase, folder)
        point, folder = yield from run_phase(
            current, asked, phase, point, out, data, display, stop, team, sampling=sampling
        )
    return point


def inherited(asked: Train, phase: Phase, folder: Path | None) -> dict[str, Any]:
    """The default sampling settings of what a phase starts from, unless they are for another process or not known."""
    source = str(folder) if folder else asked.init
    if not source:
        return {}
    found, _ = checkpoint.find(state.resolved(source))
    note = read_note(found)
    said, origin = note.get("settings", {}).get("sampling") or {}, note.get("objective", "mdlm")
    facts, origin = phase.objective.facts, origin if isinstance(origin, str) else origin.get("name")
    name = str(said.get("sampler", facts.sampler)).partition(":")[0]
    alike = origin in OBJECTIVES and OBJECTIVES[origin].facts.process == facts.process
    followed = alike and name in POLICIES and POLICIES[name].process == policies_of(facts.process)
    fits = name == facts.sampler or followed
    return dict(said) if fits else {}


def denoiser_of(asked: Train, phase: Phase, data: Data, folder: Path | None, team: Team) -> Denoiser:
    """What a phase begins with: a network, and the parameters of its objective."""
    rows = min(asked.optim.micro or asked.optim.batch, asked.optim.batch // team.world)
    check_room(phase.objective, rows=rows, vocab=data.tokenizer.size, less="--optim.micro")
    network = network_of(asked, phase, data, folder)
    network.compute = compute_type(asked.run.dtype, team.device)
    denoiser = Denoiser(network, phase.objective, **inherited_parts(asked, phase, folder))
    phase.objective.prepare(dict(denoiser.parts.items()), data.counts)
    return denoiser


def inherited_parts(asked: Train, phase: Phase, folder: Path | None) -> dict[str, Any]:
    """The parts and the state of the objective, if what a phase starts from was trained with the same one."""
    source = str(folder) if folder else asked.init
    if not source or not phase.objective.parts(vocab=1, width=1):
        return {}
    model = checkpoint.load(state.resolved(source), trainable=True, headed=False)
    if not model.parts or type(model.objective) is not type(phase.objective):
        return {}
    wanted = sizes_of(phase.objective.parts(vocab=model.spec.vocab, width=model.spec.width))
    for name, size in sizes_of(model.parts).items():
        if wanted.get(name) != size:
            raise UserError(
                f"in {source} the objective's {name} has the size {size}, and these settings ask for "
                f"{wanted.get(name, 'none')}: give it the settings it was trained with, or leave --init out."
            )
    return {"parts": model.parts, "state": model.state}


def sizes_of(parts: Mapping[str, nn.Module]) -> dict[str, tuple[int, ...]]:
    """The sizes of all tensors of the parts of an objective, by name."""
    return {
        f"{name}.{key}": tuple(value.shape)
        for name, part in parts.items()
        for key, value in part.state_dict().items()
    }


def network_of(asked: Train, phase: Phase, data: Data, folder: Path | None) -> Backbone:
    """The network a phase begins with: new, or with the weights of --init or of the previous phase."""
    source = str(folder) if folder else asked.init
    if not source:
        torch.manual_seed(asked.seed)
        return build(spec_of(asked, phase, vocab=data.tokenizer.size).reading(data.tokenizer))
    model = checkpoint.load(state.resolved(source), trainable=True)
    if model.tokenizer is not None and model.tokenizer.fingerprint != data.tokenizer.fingerprint:
        raise UserError(
            f"the data was tokenized with another tokenizer (fingerprint {data.tokenizer.fingerprint[:12]}) than "
            f"{source} ({model.tokenizer.fingerprint[:12]}). Use --text.tokenizer {source}."
        )
    if model.spec.vocab < data.tokenizer.size or model.mask != data.tokenizer.mask:
        raise UserError(
            f"{source} has {model.spec.vocab} ids with mask {model.mask}; the data's tokenizer has "
            f"{data.tokenizer.size} with mask {data.tokenizer.mask}."
        )
    network = build(continued(model.spec, asked, phase))
    network.load_state_dict(model.network.state_dict())
    return network


def run_phase(
    current: State,
    asked: Train,
    phase: Phase,
    point: Point,
    out: Path,
    data: Data,
    display: Voice,
    stop: list[int],
    team: Team,
    *,
    sampling: Mapping[str, Any],
) -> Generator[Progress, None, tuple[Point, Path]]:
    """Train to the end of a phase, or until a signal; evaluate and save on the way."""
    folder = state.folder_of(out, point.step)
    settings = toml.described(asked) | ({"sampling": dict(sampling)} if sampling else {})

    def save() -> Path:
        display.flush()
        try:
            return state.save_state(
                out,
                current,
                point,
                mask=data.tokenizer.mask,
                objective=phase.objective,
                tokenizer=data.tokenizer,
                settings=settings,
                keep=asked.run.keep,
                team=team,
            )
        except Told:
            raise
        except UserError as error:
            raise UserError(f"{error} {last_good(out)}") from None

    clock = PreviewClock(60 * asked.run.preview_minutes if team.world == 1 else 0)
    batch = partial(data.batches.at, rank=team.rank, world=team.world)
    steps = train(current, phase, asked, batch, mask=data.tokenizer.mask, start=point.step, team=team)
    try:
        for progress in steps:
            point = moved(point, progress)
            display.step(progress)
            halt = bool(halted(stop, team))
            last = progress.step == phase.stop or halt
            better = False
            if (progress.step % asked.run.eval_every == 0 or progress.step == phase.stop) and not halt:
                score = scored(current, asked, phase, data, team)
                if score is not None:
                    display.score(progress.step, score)
                    better = point.best is None or score.bound < point.best
                    point = replace(point, best=score.bound, best_step=point.step) if better else point
                if asked.run.preview:
                    with clock:
                        preview(current, settings, phase, data, display, team)
            elif asked.run.preview and clock.due() and not halt:
                with clock:
                    preview(current, settings, phase, data, display, team)
            if last or better or progress.step % asked.run.save_every == 0:
                folder = save()
            if halt:
                break
            try:
                yield progress
            except GeneratorExit:  # the caller wants no more steps
                if folder != state.folder_of(out, point.step):
                    save()
                raise
    except Diverged as error:
        raise UserError(f"{error}. {last_good(out)} A smaller optim.lr or a longer optim.warmup helps.") from None
    return point, folder


def averaged(current: State) -> AbstractContextManager[None]:
    """Use the averaged weights, if there are any."""
    current.denoiser.eval()
    return ema.in_place(current.shadow, list(current.denoiser.parameters()) if current.shadow else [])


def moved(point: Point, progress: Progress) -> Point:
    return replace(
        point,
        step=progress.step,
        tokens=point.tokens + progress.tokens,
        seconds=point.seconds + progress.seconds,
    )


def last_good(out: Path) -> str:
    steps = state.steps_in(out)
    return (
        f"The last good checkpoint is {state.folder_of(out, steps[-1])}." if steps else "No checkpoint was written."
    )


def preview(
    current: State, settings: Mapping[str, Any], phase: Phase, data: Data, display: Voice, team: Team
) -> None:
    """Show samples of the averaged network, which rank 0 gathers for this."""
    exports = state.exported(current, team)

    def show() -> None:
        assert exports is not None
        # A sharded network may be too large for one device.
        exports.to("cpu" if state.state_is_sharded(current) else team.device)
        network, parts = exports.backbone.freeze(), dict(exports.parts.items())
        display.preview(
            Model(
                network,
                data.tokenizer.mask,
                phase.objective,
                data.tokenizer,
                settings,
                parts=parts,
                state=exports.state,
            )
        )

    team.lead(show)


def scored(current: State, asked: Train, phase: Phase, data: Data, team: Team) -> Validation | None:
    """The bound on the validation split with the averaged weights, if there is such a split."""
    batches = data.valid(asked.run.eval_rows)
    if not batches:
        return None
    with averaged(current):
        return validate(
            current.denoiser, batches, phase.objective, mask=data.tokenizer.mask, seed=asked.seed, team=team
        )
