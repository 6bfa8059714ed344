"""Run a study, such as a table of the paper: several systems and seeds, one budget, error bars.

A study is a TOML file (docs/how/study.md). What is finished is kept: run the same command again after a stop, a
failure or a change of the file, and only what is missing is computed.

    unmask study configs/paper/table1.toml --scale cpu --out runs/table1
    unmask study mine.toml --out runs/mine --dry-run                 the cost of every row
    unmask study mine.toml --out runs/mine --rows MDLM AR --jobs 2
    unmask study mine.toml --out runs/mine --print-commands          one line per row, for a queue
    unmask study mine.toml --out /shared/mine --on ray://head:10001  its commands on the nodes of a Ray cluster
"""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unmask.cli import main
from unmask.cli.flags import On
from unmask.errors import UserError, how_many
from unmask.files import clear_drafts, write_json, write_whole
from unmask.processes.cluster import connect_cluster
from unmask.processes.signals import stopping
from unmask.studies import run as runner
from unmask.studies.pace import Pace
from unmask.studies.plan import StudyPlace, Task, costs, plan_tasks, steps_of, tokens_seen, total_flops
from unmask.studies.run import Execution, TaskEvent
from unmask.studies.study import Study, only, read_study
from unmask.studies.table import check_places, table_of
from unmask.text.corpus.named import data_root
from unmask.training.estimate import duration
from unmask.views import study as view
from unmask.views.figure import save_picture
from unmask.views.study_picture import curves_beside, drawable, picture


@dataclass(frozen=True)
class Settings:
    file: Annotated[Path, tyro.conf.Positional]  # the study's TOML file
    out: Path | None = None  # folder for everything: data, runs, results, the table
    scale: str = ""  # one of the scales of the file, such as smoke, cpu or paper; none: as it is
    rows: tuple[str, ...] = ()  # rows to run, and those they begin with; none: all
    jobs: int | None = None  # commands at once; none: 1, on a cluster as many as fit; 0: in this process
    on: On = ""
    data_root: Path | None = None  # folder of the study's data; none: the variable UNMASK_DATA, else data/
    dry_run: bool = False  # print the cost of every row and what is already done; run nothing
    print_commands: bool = False  # print one command per row, to be run as separate jobs; run nothing
    launcher: str = ""  # words before every training and measurement, such as "torchrun --nproc-per-node 8"


def run(settings: Settings) -> None:
    if settings.jobs is not None and settings.jobs < 0:
        raise UserError(f"--jobs must be 0 or more, not {settings.jobs}.")
    whole = read_study(settings.file, settings.scale)
    if settings.out is None:
        raise UserError("where should the study go? Give --out FOLDER, such as --out runs/table1.")
    place = StudyPlace(settings.out, data_root(settings.data_root))
    tasks = plan_tasks(whole, place, there=not (settings.dry_run or settings.print_commands))
    study = only(whole, settings.rows) if settings.rows else whole
    check_options(study, tasks)
    chosen = tasks_needed(tasks, [task for task in tasks if task.row in {row.name for row in study.rows}])
    if settings.print_commands:
        print("\n".join(commands(study, settings, place)))
        return
    if settings.dry_run:
        print(cost_table(study, chosen))
        return
    launcher = tuple(shlex.split(settings.launcher))
    if launcher and settings.on:
        raise UserError("--launcher starts processes on one machine: leave out --launcher, or --on.")
    imports = tuple(f"unmask.cli.{verb}" for verb in sorted({task.command[0] for task in chosen if task.command}))
    with connect_cluster(settings.on) as cluster, stopping() as stop:
        fitting = max(1, cluster.cores // study.threads) if cluster is not None else 1
        jobs, inside = settings.jobs or fitting, settings.jobs == 0 and cluster is None
        how = Execution(place.root, main.main, imports, jobs, study.threads, launcher, inside, cluster)
        failures = run_watched(study, chosen, how, stop)
    table = table_of(whole, tasks, settings.out, failures)
    write_table(table, settings.out)
    print(view.as_text(table))
    print(f"\nwritten: {settings.out}/table.json, .md, .html" + (", .png" if drawable(table) else ""))
    if stop:
        print("unmask: stopped; what is finished is kept: run the same command again to go on", file=sys.stderr)
        sys.exit(128 + stop[0])
    if failures:
        reasons: dict[str, list[str]] = {}
        for name, why in failures.items():
            reasons.setdefault(why, []).append(name)
        raise UserError(
            f"{len(failures)} of {len(chosen)} commands failed; the others are in the table. "
            + "; ".join(f"{', and '.join(names)}: {why}{log_of(chosen, names)}" for why, names in reasons.items())
        )
    check_places(whole, tasks)


def log_of(tasks: Sequence[Task], names: Sequence[str]) -> str:
    """Where the first of some tasks has written its log; empty: none of them began."""
    logs = (task.folder / runner.LOG for task in tasks if task.name in names)
    return next((f" (log: {path})" for path in logs if path.is_file()), "")


def check_options(study: Study, tasks: Sequence[Task]) -> None:
    """Refuse options that the verb of a measurement or of the data does not have, before anything is trained."""
    rows = {row.name for row in study.rows}
    commands = {}
    for task in tasks:
        if task.kind == "data" and task.command:
            commands["data.prepare", ""] = task.command
        elif task.kind == "measure" and task.row in rows:
            options = str(study.row(task.row).options.get(task.measure))
            commands[f"measure.{task.measure}", options] = task.command
    for (where, _), (verb, *rest) in commands.items():
        try:
            with redirect_stderr(StringIO()):  # no terminal: the message is the error's
                main.parse_settings(verb, rest)
        except UserError as error:
            raise UserError(f"{study.path}: {where}: {error}") from None


def tasks_needed(tasks: Sequence[Task], chosen: Sequence[Task]) -> list[Task]:
    """The chosen tasks with all that they need, in the order of the plan."""
    by_name = {task.name: task for task in tasks}
    wanted, todo = set(), [task.name for task in chosen]
    while todo:
        name = todo.pop()
        if name not in wanted:
            wanted.add(name)
            todo += by_name[name].needs
    return [task for task in tasks if task.name in wanted]


def commands(study: Study, settings: Settings, place: StudyPlace) -> Iterator[str]:
    """The data first, then one command per row: any number of them may run at the same time."""
    base = ["unmask", "study", str(settings.file), "--out", str(settings.out), "--data-root", str(place.root)]
    base += ["--scale", settings.scale] if settings.scale else []
    base += ["--launcher", settings.launcher] if settings.launcher else []
    yield "# A row that begins with another row's weights waits for it: run them in this order."
    for row in study.rows:
        yield shlex.join([*base, "--rows", row.name])


def cost_table(study: Study, tasks: Sequence[Task]) -> str:
    """The cost of every row, before anything runs."""
    pace = Pace(study)
    lines = [("row", "parameters", "tokens", "FLOPs", "training", "done")]
    total = 0.0
    for row in study.rows:
        own = [task for task in tasks if task.row == row.name]
        done = f"{sum(map(runner.is_done, own))} of {len(own)}"
        if row.train is None:
            lines.append((row.name, "", "", "", "", done))
            continue
        flops = total_flops(study, row, steps=steps_of(study, row))
        seeds = len(study.seeds)
        seconds = study.seconds or pace.seconds(row)
        total += seconds * seeds
        lines.append(
            (
                row.name,
                f"{costs(study, row)[-1].parameters:,}",
                f"{tokens_seen(study, row):,}",
                f"{flops:.1e}",
                duration(seconds) + (f" x {seeds} seeds" if seeds > 1 else ""),
                done,
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    shown = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
    how = how_many(study.threads, "thread")
    notes = [f"all trainings, one after another: about {duration(total)} with {how} ({pace.rate / 1e9:.0f} GFLOPS)"]
    notes += [f"this scale needs {study.hardware}"] if study.hardware else []
    return "\n".join([*(line.rstrip() for line in shown), "", *notes, "measurements are not estimated"])


def run_watched(study: Study, tasks: Sequence[Task], how: Execution, stop: list[int]) -> dict[str, str]:
    """Run the tasks with an overview in the terminal, or one line per event elsewhere; returns what failed."""
    console = Console(file=sys.stderr, highlight=False)
    failures: dict[str, str] = {}
    latest: dict[str, TaskEvent] = {}
    live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
    if live is not None:
        live.start()
    try:
        for event in runner.run(tasks, how, stop):
            latest[event.task.name] = event
            if event.state in ("failed", "skipped"):
                failures[event.task.name] = event.note
            if live is not None:
                live.update(overview(study, tasks, latest))
            elif event.state != "running":
                log = log_of(tasks, [event.task.name]) if event.state == "failed" else ""
                note = f": {event.note}{log}" if event.note else ""
                console.print(f"{event.state}  {event.task.name}{note}", soft_wrap=True, markup=False)
    finally:
        if live is not None:
            live.stop()
    return failures


MARKS = {"kept": "✓", "done": "✓", "started": "▸", "running": "▸", "failed": "✗", "skipped": "·"}


def overview(study: Study, tasks: Sequence[Task], latest: dict[str, TaskEvent]) -> Table:
    """What is done, what runs and what it says."""
    done = sum(event.state in ("kept", "done") for event in latest.values())
    shown = Table(title=f"{study.title}: {done} of {len(tasks)} commands", box=None, padding=(0, 2))
    for name in ("", "command", "time", "last line"):
        shown.add_column(name, no_wrap=True, overflow="ellipsis")
    for task in tasks:
        event = latest.get(task.name)
        if event is None:
            shown.add_row(" ", Text(task.name, style="dim"), "", "")
        else:
            time = duration(event.seconds) if event.seconds else ""
            shown.add_row(MARKS[event.state], Text(task.name), time, Text(event.note, style="dim"))
    return shown


def write_table(table: dict[str, Any], out: Path) -> None:
    clear_drafts(out)
    write_json(out / "table.json", table)
    write_whole(out / "table.md", view.as_markdown(table))
    write_whole(out / "table.html", view.as_page(table))
    if drawable(table):
        save_picture(picture(table), out / "table.png")
    if (beside := curves_beside(table)) is not None:
        save_picture(beside, out / "curves.png")
