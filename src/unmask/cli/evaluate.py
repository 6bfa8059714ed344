"""Measure a model on text: nats per token, perplexity and bits per byte, each with its error bar.

DATA is a file, a folder, a glob, `-`, a corpus (ptb, wikitext103), `hf:NAME`, or what `unmask prepare` made.

    unmask evaluate runs/mine my_texts/                      the bound (for ar models the likelihood itself)
    unmask evaluate runs/mine my_texts/ --precision 0.01     until the standard error is 0.01 nats per token
    unmask evaluate runs/mine qa.jsonl --given question --answer text     the answer given the question
    unmask evaluate runs/mine --pairs blimp.jsonl            how often the good sentence is preferred
    unmask evaluate runs/mine --suite zero-shot --rows 64    the seven texts of the paper's Table 3
    torchrun --nproc-per-node 4 -m unmask evaluate ...       the same numbers, the rows shared by four processes
    unmask evaluate runs/mine my_texts/ --on ray             the same numbers from the nodes of a cluster
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from unmask.cli.flags import AsJson, ModelName, On, Place, Placing, ResultFile
from unmask.cli.suite import set_result, set_work, sets_of, suite_table
from unmask.cli.table import accuracy_lines, deliver, likelihood_lines, measure_watched, write_text
from unmask.errors import UserError
from unmask.evaluation.likelihood import measure, pairs
from unmask.evaluation.likelihood.measure import How, Measurement
from unmask.evaluation.likelihood.zero_shot import TextSet
from unmask.evaluation.record import record
from unmask.model.model import Model
from unmask.processes.cluster import Cluster, check_alone, connect_cluster
from unmask.processes.team import Team, together
from unmask.text.corpus.detokenize import detokenizer
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.records import existing, records
from unmask.text.corpus.tokenized import read_documents
from unmask.text.corpus.turns import exchanges


@dataclass(frozen=True)
class Settings:
    model: ModelName
    data: Annotated[str, tyro.conf.Positional] = ""  # text to score (see above)
    how: Annotated[How, tyro.conf.arg(name="")] = field(default_factory=How)
    layout: Annotated[FileLayout, tyro.conf.arg(name="")] = field(default_factory=FileLayout)
    split: str | None = None  # split, if the data has several: valid, test, train; none: valid, else test
    detokenize: str = "none"  # detokenizer to apply first: wikitext, ptb, lm1b, lambada, scientific
    pairs: str = ""  # a .jsonl file of minimal pairs (sentence_good, sentence_bad), in place of DATA
    by: str = ""  # field of the pairs: report the accuracy per value of it too (BLiMP: UID)
    suite: tuple[str, ...] = ()  # instead of DATA: zero-shot (the paper's seven texts) or some of them
    data_root: Path | None = None  # folder with the texts of the suite; none: UNMASK_DATA, else data/, else the hub
    limit: int = 0  # documents to read of each text of the suite; 0: all
    json: AsJson = False
    out: ResultFile = None
    write: Path | None = None  # write the nats of each row (with --pack rows: of each document) to a .jsonl file
    each_token: bool = False  # with --write: the nats of each token too
    on: On = ""
    place: Placing = field(default_factory=Place)


def run(settings: Settings) -> None:
    if sum(map(bool, (settings.data, settings.pairs, settings.suite))) != 1:
        raise UserError("give DATA, --pairs FILE or --suite zero-shot: what should be measured?")
    with together() as team:
        check_alone(team, settings.on)
        with connect_cluster(settings.on) as cluster:
            measure_and_print(settings, team, cluster)


def measure_and_print(settings: Settings, team: Team, cluster: Cluster | None) -> None:
    sets = sets_of(settings.suite) if settings.suite else []
    model = settings.place.load(settings.model)
    if sets:
        return measure_suite(model, sets, settings, team, cluster)
    if settings.pairs:
        answer = measured_pairs(model, settings, team, cluster)
        if team.rank == 0:
            deliver(answer, accuracy_lines(answer), as_json=settings.json, out=settings.out)
        return
    work = measured_answers(model, settings) if settings.layout.pairs else text_measurement(model, settings)
    tally, seconds = measure_watched(work, team=team, cluster=cluster)
    if team.rank:
        return
    answer = measure.result(work, tally, seconds=seconds)
    answer["record"]["processes"] = team.world
    if settings.write:
        lines = measure.by_row(tally, tokens=settings.each_token, by_document=work.by_document)
        write_text(settings.write, "".join(json.dumps(line) + "\n" for line in lines))
    deliver(answer, likelihood_lines(answer), as_json=settings.json, out=settings.out)


def measure_suite(
    model: Model, sets: Sequence[TextSet], settings: Settings, team: Team, cluster: Cluster | None
) -> None:
    """One table of several texts; those that cannot be measured are named with the reason."""
    answer: dict[str, Any] = {"results": [], "missing": {}}
    lines: list[str] = []
    for one in sets:
        try:
            work = set_work(model, one, settings.how, data_root=settings.data_root, limit=settings.limit)
            tally, seconds = measure_watched(work, title=one.name, team=team, cluster=cluster)
        except UserError as error:
            answer["missing"][one.name] = str(error)
            continue
        if team.rank:
            continue
        answer["results"].append(set_result(one, work, tally, seconds))
        lines += [
            json.dumps({"set": one.name, **line}) + "\n" for line in measure.by_row(tally, tokens=settings.each_token)
        ]
        if settings.out:  # after every text: what was measured is kept
            write_text(settings.out, json.dumps(answer) + "\n")
    if team.rank:
        return
    if not answer["results"]:
        raise UserError("no text of the suite could be measured:\n  " + "\n  ".join(answer["missing"].values()))
    if settings.out:
        write_text(settings.out, json.dumps(answer) + "\n")
    if settings.write:
        write_text(settings.write, "".join(lines))
    print(json.dumps(answer) if settings.json else "\n".join(suite_table(answer["results"], answer["missing"])))


def text_measurement(model: Model, settings: Settings) -> Measurement:
    data = read_documents(
        settings.data,
        model.text_tokenizer(),
        layout=settings.layout,
        split=settings.split,
        detokenize=detokenizer(settings.detokenize),
    )
    work = measure.measurement_of(model, data, settings.how)
    return replace(work, data={**work.data, "detokenizer": settings.detokenize, "layout": asdict(settings.layout)})


def measured_answers(model: Model, settings: Settings) -> Measurement:
    """Answers to prompts: one row each, in which the prompt is not scored."""
    given, answer = settings.layout.given, settings.layout.answer_field
    entries = [(one.given, one.answer) for one in exchanges(existing(settings.data), given, answer)]
    return measure.answers(
        model, entries, settings.how, data={"name": settings.data, "given": given, "field": answer}
    )


def measured_pairs(model: Model, settings: Settings, team: Team, cluster: Cluster | None) -> dict[str, Any]:
    """Minimal pairs: the share of good sentences that have fewer nats than the bad ones."""
    entries = list(records(settings.pairs, *pairs.FIELDS, *([settings.by] if settings.by else [])))
    entries = list(measure.spread_evenly(entries, settings.how.rows))
    work = measure.of_pairs(model, entries, settings.how, data={"name": settings.pairs})
    tally, seconds = measure_watched(work, team=team, cluster=cluster)
    if tally.whole == 0:
        raise UserError("the time ended before every sentence was scored once; give more --seconds.")
    paid = np.stack(tally.nats[: tally.whole]).mean(0).reshape(-1, 2)
    groups = [entry[settings.by] for entry in entries] if settings.by else None
    every, *groupwise = pairs.accuracies(paid, groups)
    how = work.how
    about = record(
        model,
        seed=how.seed,
        settings=measure.settings_of(how),
        data=dict(work.data),
        passes=tally.whole,
        processes=team.world,
    )
    answer = {
        **asdict(every),
        "estimator": how.estimator,
        "means": "share of pairs whose good sentence has fewer nats, by " + work.estimator.means,
        "groups": [asdict(group) for group in groupwise],
        "seconds": round(seconds, 3),
        "record": about,
    }
    return measure.finite(answer)
