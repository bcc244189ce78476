"""Screenshots of MLflow's pages of a variant (experiment, run, trace, prompt, model and compare page) and of the page
that compares variants.

    python benchmarks/screenshots.py [--out docs/images] [--json] [KEY=VALUE ...]

It compiles `rag` for a part of atlas with the default model and evaluates others beside it, in a store of its own,
writes the page of `hop report`, and opens all in a headless Chromium. It needs playwright (`pip install playwright`)
and a Chromium: that of the system, or what `playwright install chromium` brings. The arguments change the config, such
as `lm=openai/gpt-4o-mini`.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
from processes import own_store

from hoptimizer import Tracker, UserError, compile_variant, evaluate_variant, load_config, write_report
from hoptimizer.comparison import page_of
from hoptimizer.tracking.models import model_of
from hoptimizer.tracking.pages import served
from reporting import benchmark_parser, show, user_mistakes

WORDS = ["data=atlas", "data.train=20", "data.dev=60", "retriever.k=2", "lm.default.max_tokens=32"]
OTHERS = ("direct", "rag", "ircot")
COMPILE = ["program=rag", "optimizer=labeled_few_shot"]
SIZE = {"width": 1280, "height": 720}
ASSISTANT = '[data-component-id="mlflow.assistant.chat_panel.close"]'
PATIENCE = 30_000  # milliseconds until a page has to show what it is opened for

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def pages(uri: str, compiled: str, other: str) -> dict[str, tuple[str, list[str]]]:
    """The path of each page, and the words that it has to show.

    Args:
        uri: the store's tracking URI.
        compiled: the run of a compile.
        other: a run to compare it with.
    """
    client = mlflow.MlflowClient(tracking_uri=uri)
    runs = [client.get_run(run_id) for run_id in (compiled, other)]
    experiment, names = runs[0].info.experiment_id, [run.info.run_name for run in runs]
    model = model_of(client, runs[0])
    [trace, *_] = client.search_traces(locations=[experiment], run_id=compiled, max_results=1)
    retrieved = trace.search_spans(span_type="RETRIEVER")[0].outputs[0]
    assert model is not None
    prompt = json.loads(model.tags["mlflow.linkedPrompts"])[0]["name"]
    compared = f"runs={json.dumps([compiled, other])}&experiments={json.dumps([experiment])}"
    trace_page = f"/#/experiments/{experiment}/traces?selectedEvaluationId={trace.info.trace_id}"
    return {
        "experiment": (page_of(uri), [*names, "dev/f1", "dev/recall"]),
        "run": (page_of(uri, runs[0]), [names[0], "dev/em", "dev/f1", "dev/recall"]),
        "trace": (trace_page, ["retrieve", "reader", retrieved["metadata"]["title"]]),
        "prompt": (f"/#/prompts/{prompt}", [prompt, "{{question}}"]),
        "model": (f"/#/experiments/{experiment}/models/{model.model_id}", [model.name, "dev/f1"]),
        "compare": (f"/#/compare-runs?{compared}", [*names, "dev/em"]),
    }


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium of playwright's.

    Raises:
        UserError: there is none.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise UserError("playwright is not installed: pip install playwright") from error
    own = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    with sync_playwright() as started:
        try:
            chromium = started.chromium.launch(executable_path=own, args=["--no-sandbox"])
        except Error as error:
            raise UserError(f"no Chromium: install your system's, or playwright's ({str(error)[:80]})") from error
        yield chromium
        chromium.close()


def visit(chromium: Any, address: str, words: Sequence[str], file: Path) -> list[str]:  # noqa: ANN401 - playwright's
    """Open a page, and take a screenshot of it.

    Returns:
        the words that it lacks.
    """
    tab = chromium.new_context(viewport=SIZE).new_page()
    tab.goto(address)
    missing = []
    for word in words:
        try:
            tab.get_by_text(word).first.wait_for(state="attached", timeout=PATIENCE)
        except Exception as error:
            if "Timeout" not in type(error).__name__:
                raise
            missing.append(word)
    for assistant in tab.locator(ASSISTANT).all():  # takes a third of the page
        assistant.dispatch_event("click")
    tab.wait_for_timeout(1000)
    tab.screenshot(path=str(file))
    return missing


def take(uri: str, experiment: str, runs: Sequence[str], out: Path) -> Mapping[str, list[str]]:
    """Screenshots of all pages, and what each lacks.

    Args:
        uri: the store's tracking URI.
        experiment: the name of the runs' experiment.
        runs: what is compared, the baseline first, a compile last.
        out: the folder of the pictures.
    """
    out.mkdir(parents=True, exist_ok=True)
    found = pages(uri, runs[-1], runs[-2])
    with tempfile.TemporaryDirectory() as folder, served(uri, "127.0.0.1", 0) as (address, _), browser() as chromium:
        report = Path(folder) / "report.html"
        compared = write_report(Tracker(uri, experiment), runs, report)
        names = [variant.name for variant in compared.variants]
        lacking = {"report": visit(chromium, report.as_uri(), names, out / "report.png")}
        return lacking | {
            name: visit(chromium, address + path, words, out / f"mlflow-{name}.png")
            for name, (path, words) in found.items()
        }


def main() -> None:
    """Make the store and the screenshots; exits 1 where a page lacks what it is opened for."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="(default: docs/images)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes the config")
    options = parser.parse_args()
    with user_mistakes(), tempfile.TemporaryDirectory() as folder:
        store = [f"tracking.{key}={value}" for key, value in own_store(Path(folder)).items()]
        words = [*WORDS, *options.overrides, *store]
        compiled = compile_variant(load_config(None, [*words, *COMPILE]))
        others = [evaluate_variant(load_config(None, [*words, f"program={program}"])) for program in OTHERS]
        runs = [*(other.run_id for other in others), compiled.run_id]
        lacking = take(compiled.config.tracking.uri, compiled.config.experiment, runs, options.out)
    lines = [f"{name}: " + (f"lacks {', '.join(words)}" if words else "complete") for name, words in lacking.items()]
    show({"lacking": dict(lacking)}, options.json, *lines)
    sys.exit(int(any(lacking.values())))


if __name__ == "__main__":
    main()
