"""``hop data synthesize``: questions about documents, by a teacher."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from hoptimizer.cli.screen.options import DryRun, Json

TEACHER = "local/qwen2.5-coder-1.5b-instruct"
"""Who writes the questions where no language model is named."""


def synthesize_command(
    source: Annotated[str, typer.Argument(help="A data set's folder with a corpus, or a file of passages.")],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings: lm.teacher=…, workers=…", show_default=False),
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many questions.")] = 100,
    multi: Annotated[float, typer.Option(help="The share of questions over two passages.")] = 0.5,
    sizes: Annotated[str | None, typer.Option(help="Of splits: train=0.8,dev=0.1,test=0.1 or train=40,dev=20.")] = None,
    seed: Annotated[int, typer.Option(help="Of what is asked about, and of the division.")] = 0,
    lm_calls: Annotated[int | None, typer.Option("--lm-calls", min=1, help="Calls of the teacher, at most.")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Have a language model write questions about passages, over one and over two that are linked by a name.

    Kept are those that it answers from their passages, and neither from one of two alone nor without any. The teacher
    is lm.teacher or lm, and local/qwen2.5-coder-1.5b-instruct where neither is given. Calls are cached: the same
    command goes on where it was stopped. With --lm-calls, what is kept by the last of so many calls is the data set.

    Examples:

        hop data synthesize my-documents --out my-data -n 40

        hop data synthesize my-documents --out my-data lm.teacher=openai/gpt-4o

        hop data synthesize my-documents --out my-data -n 200 --dry-run
    """
    from hoptimizer.cli.screen.console import show, tell, working
    from hoptimizer.eval.datasets.dataset import locate
    from hoptimizer.eval.datasets.folder import read_passages
    from hoptimizer.eval.datasets.settings import free_data_folder
    from hoptimizer.eval.splits import parse_sizes

    free_data_folder(out)
    shares = parse_sizes(sizes) if sizes else None
    with working():
        corpus = read_passages(locate(source))

    # What takes seconds to import comes after what can be wrong before.
    from hoptimizer.cli.screen.options import read_overrides
    from hoptimizer.eval.synthesis.synthesizing import expected_synthesis, synthesize
    from hoptimizer.workbench import Workbench

    words = overrides or []
    base = {"data": source, "lm": {"default": {"model": TEACHER}}}
    with working():
        config = read_overrides(words, base)
        role = "teacher" if "teacher" in config.lm else "default"
        teacher = config.lm[role].shown
    if dry_run:
        expected = expected_synthesis(corpus, n=n, multi=multi, sizes=shares, seed=seed, lm_calls=lm_calls)
        lines = [
            f"teacher {teacher}, for {n} questions, {round(n * multi)} of them over two passages",
            f"{expected.singles} passages to ask about; {expected.links} pairs of them that a name links",
            f"{expected.calls:,} calls if every question passes the checks, at most {expected.most_calls:,}",
        ]
        show({"teacher": teacher, **dataclasses.asdict(expected)}, as_json, *lines)
        return
    with working() as progress:
        bench = Workbench(config, progress)
        tell(f"teacher {teacher} · {corpus.name} ({len(corpus)} passages)")
        with bench.active(spread=True):
            made = synthesize(
                corpus,
                out,
                bench.lms[role],
                n=n,
                multi=multi,
                sizes=shares,
                seed=seed,
                workers=config.workers,
                lm_calls=lm_calls,
                progress=progress,
            )
    total = sum(made.splits.values())
    splits = ", ".join(f"{split} {count}" for split, count in made.splits.items())
    types = ", ".join(f"{kind} {count}" for kind, count in made.types.items())
    lines = [f"{made.folder}: {splits} questions ({types}), {made.passages} passages; use it with data={made.folder}"]
    if total < n:
        lines.append(f"{total} of {n} questions: more documents or a larger teacher give more")
    wanted = round(n * multi)
    if (found := made.types.get("bridge", 0)) < wanted:
        lines.append(f"{found} of {wanted} questions over two passages: a larger teacher writes more of them")
    dropped = sum(made.dropped.values())
    lines.append(f"{made.attempts} attempts" + (f", of which {dropped} were dropped:" if dropped else ""))
    lines += [f"{count:>4}  {reason}" for reason, count in made.dropped.items()]
    show(dataclasses.asdict(made) | {"folder": str(made.folder)}, as_json, *lines)
