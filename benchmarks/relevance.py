"""How well a small encoder, fine-tuned on a data set's annotations, judges retrieved passages of unseen questions.

    python benchmarks/relevance.py --data DIR [--retriever bm25] [--questions N] [--base minilm] [--epochs N]
        [--json]

DIR holds the folder ``2wikimultihopqa`` with its published files, as ``read_sets`` of
``hoptimizer.optimizers.training.retriever.colbert_data`` reads them. The encoder learns from the train questions; an
eighth of them decides on epoch and threshold; the dev questions, unseen by all this, are scored. Each hop of a question
is asked, too, in training and in scoring, as RA-ISF asks its parts. Beside it stands what the embedded language model
says of the same passages when it is asked.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy
import torch
from rich.pretty import Pretty
from rich.progress import Progress

from hoptimizer.common.errors import UserError
from hoptimizer.models import LMSettings, build_adapter, build_lm
from hoptimizer.models.small.classifier import Classifier
from hoptimizer.optimizers.labels.annotations import holding, supporting
from hoptimizer.optimizers.labels.demonstrations import annotate
from hoptimizer.optimizers.labels.examples import Task, TrainingExample, relevance_examples
from hoptimizer.optimizers.prompt.few_shot import labeled
from hoptimizer.optimizers.prompt.prompt_format import PROMPT_FORMATS
from hoptimizer.optimizers.training.calibration import classification_scores
from hoptimizer.optimizers.training.classifier import ClassifierTrainingConfig, train_classifier
from hoptimizer.optimizers.training.loop import TrainingProgress
from hoptimizer.optimizers.training.retriever.colbert_data import QuestionWithContext, RetrievalSet, read_sets
from hoptimizer.programs import RAISF, Program
from hoptimizer.programs.trace import StepTrace, recording
from hoptimizer.retrieval import Passage, Retriever, RetrieverSettings, build_retriever
from reporting import benchmark_parser, show, user_mistakes

K = 5
# The title and the first sentence tell what a passage is about; more takes longer and teaches less.
MAX_TOKENS = 64
DATA = "2wikimultihopqa"
LM = "local/smollm2-135m-instruct"
SEED = 7
TASK = Task(step="relevant", inputs=("question", "passage"), output="relevant", labels=(False, True))


def measure(
    one: RetrievalSet,
    retriever: Retriever,
    questions: int | None,
    config: ClassifierTrainingConfig,
    folder: Path,
) -> dict[str, Any]:
    """Train, then judge what is retrieved for the dev questions."""
    asked = one.train[:questions]
    held_out = max(1, len(asked) // 8)
    learn, choose = asked[held_out:], asked[:held_out]
    start = time.perf_counter()
    found = search(retriever, [a.question.question for a in learn])
    examples = relevance_examples([a.question for a in learn], found, [a.context for a in learn], one.corpus)
    with Progress(disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("Training")

        def report(progress: TrainingProgress) -> None:
            bar.update(task, completed=progress.step, total=progress.steps)
            if progress.scores:
                scores = ", ".join(f"{name} {score:.3f}" for name, score in progress.scores.items())
                sys.stderr.write(f"{time.perf_counter() - start:.0f} s, {progress.step}/{progress.steps}: {scores}\n")

        card = train_classifier(TASK, examples, retrieved(one, retriever, choose), config, folder, report)
    seconds = time.perf_counter() - start
    judged = retrieved(one, retriever, one.dev)
    results = Classifier(folder, card).predict([example.inputs for example in judged])
    chosen = [bool(result["relevant"]) for result in results]
    gold = [bool(example.output) for example in judged]
    return {
        "data": one.name,
        "retriever": retriever.name,
        "k": K,
        "train_questions": len(asked),
        "examples": len(examples),
        "dev_questions": len(one.dev),
        "threshold": card.threshold,
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        **classification_scores([int(g) for g in gold], [int(c) for c in chosen], 2),
    }


def prompted(one: RetrievalSet, retriever: Retriever) -> dict[str, dict[str, float]]:
    """What the embedded language model says of what is retrieved for the dev questions, by how it is asked."""
    judged = retrieved(one, retriever, one.dev)
    gold = [int(bool(example.output)) for example in judged]
    trainset = annotate([a.question for a in one.train], one.corpus, retriever, distractors=0, seed=SEED)
    random.Random(SEED).shuffle(trainset)
    scores = {}
    with dspy.context(lm=build_lm(LMSettings(model=LM, max_tokens=16)), adapter=build_adapter()):
        for prompt_format in PROMPT_FORMATS:
            for demos in (0, 4):
                program = RAISF(retriever, k=K)
                program.prompt_format = prompt_format
                if demos:
                    program = labeled(program, trainset, demos)
                said = asyncio.run(judge(program, judged))
                scores[f"{prompt_format}, {demos} demonstrations"] = classification_scores(gold, said, 2)
    return scores


async def judge(program: Program, judged: Sequence[TrainingExample]) -> list[int]:
    """Whether the program's relevance step takes each passage for relevant."""
    with recording(StepTrace()):
        said = await asyncio.gather(*(program.step("relevance", **example.inputs) for example in judged))
    return [int(each.relevant == "yes") for each in said]


def search(retriever: Retriever, questions: Sequence[str]) -> list[list[Passage]]:
    """What is retrieved for each question."""
    return retriever.search(list(questions), K)


def retrieved(one: RetrievalSet, retriever: Retriever, asked: Sequence[QuestionWithContext]) -> list[TrainingExample]:
    """Whether each passage that is retrieved for a question or one of its hops holds the answer to it."""
    cases = [(a.question.question, holding(a.question, one.corpus)) for a in asked]
    cases += [(hop.question, supporting(a.question, hop)) for a in asked for hop in a.question.hops if hop.passage]
    return [
        TrainingExample({"question": text, "passage": str(passage)}, passage.id in gold)
        for (text, gold), ranking in zip(cases, search(retriever, [text for text, _ in cases]), strict=True)
        for passage in ranking
    ]


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help=f"folder that holds the folder {DATA}")
    parser.add_argument("--retriever", default="bm25", choices=("bm25", "colbert"), help="(default: bm25)")
    parser.add_argument("--questions", type=int, help="train questions; all by default")
    parser.add_argument("--base", default="minilm", help="encoder to fine-tune (default: minilm)")
    parser.add_argument("--epochs", type=int, default=6, help="rounds over the examples (default: 6)")
    options = parser.parse_args()
    config = ClassifierTrainingConfig(base=options.base, epochs=options.epochs, max_tokens=MAX_TOKENS)
    with user_mistakes():
        one = next((one for one in read_sets(options.data) if one.name == DATA), None)
        if one is None:
            raise UserError(f"{options.data}: no folder {DATA} in it")
        retriever = build_retriever(RetrieverSettings(name=options.retriever), one.corpus)
        with tempfile.TemporaryDirectory() as temporary:
            figures = measure(one, retriever, options.questions, config, Path(temporary))
        figures["prompted"] = prompted(one, retriever)
    show(figures, options.json, Pretty(figures))


if __name__ == "__main__":
    main()
