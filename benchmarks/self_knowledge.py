"""Ways to tell whether a language model knows an answer, against what it answers right (RA-ISF, equation 5).

    python benchmarks/self_knowledge.py --data DIR [--lm local/NAME] [--questions N] [--ways WAY ...] [--json]

The model answers from memory, with four demonstrations in the plain prompt format; exactly right is known. Each way
learns from atlas' train questions and their hops and is tuned on its dev questions and hops. It is scored on atlas'
test questions, their hops, and the questions of DIR/triviaqa/*.jsonl, of which it has seen none. Intervals: 2,000
bootstrap resamples, the same for every way; the differences are those from the probability of the answer, which is the
way that hoptimizer takes. ``--questions`` bounds each of these sets: all of them take more than ten minutes on two
cores.
"""

import asyncio
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import torch
from dspy.experimental import Noul, ReAnchor
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoModelForCausalLM, AutoTokenizer

from hoptimizer import UserError, Workbench, load_config
from hoptimizer.eval.datasets.open_domain import OpenItem
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.datasets.rows import read_rows, require
from hoptimizer.eval.metrics import exact_match
from hoptimizer.models.adapters import PlainAdapter
from hoptimizer.models.engine.loading import quiet_loading
from hoptimizer.models.small.classifier import Classifier
from hoptimizer.models.small.confidence import ANSWER_PROBABILITY
from hoptimizer.models.weights.store import resolve
from hoptimizer.optimizers.labels.demonstrations import annotate
from hoptimizer.optimizers.labels.examples import Task, TrainingExample
from hoptimizer.optimizers.prompt.few_shot import labeled
from hoptimizer.optimizers.training.calibration import best_threshold
from hoptimizer.optimizers.training.classifier import ClassifierTrainingConfig, train_classifier
from hoptimizer.optimizers.training.confidence import calibrate_confidence
from hoptimizer.programs import Program
from hoptimizer.programs.trace import StepTrace, recording
from reporting import benchmark_parser, show, user_mistakes

DEMOS = 4
SEED = 7
RESAMPLES = 2_000
LAYERS = (1 / 3, 1 / 2, 2 / 3, 5 / 6, 1)  # shares of the depth
STRENGTHS = (1e-3, 1e-2, 1e-1)
LABELS = ("no", "yes")
SIDE_BY_SIDE = ("atlas and TriviaQA", ("atlas", "TriviaQA"))
OURS = "probability of the answer"


@dataclass(frozen=True)
class Asked:
    """Questions that the model was asked from memory.

    Attributes:
        questions: as asked.
        known: whether each was answered right.
        probabilities: of the answers, by the model itself.
        says: whether it says, when it is asked, that it knows.
    """

    questions: list[str]
    known: np.ndarray
    probabilities: list[float]
    says: np.ndarray

    def __add__(self, other: "Asked") -> "Asked":
        return Asked(
            self.questions + other.questions,
            np.concatenate([self.known, other.known]),
            self.probabilities + other.probabilities,
            np.concatenate([self.says, other.says]),
        )

    def examples(self) -> list[TrainingExample]:
        """What judges learn from."""
        rows = zip(self.questions, self.probabilities, self.known, strict=True)
        return [TrainingExample({"question": q, ANSWER_PROBABILITY: p}, LABELS[int(known)]) for q, p, known in rows]


Judge = Callable[[Asked], np.ndarray]


async def ask(program: Program, asked: Sequence[tuple[str, Sequence[str]]]) -> Asked:
    """Ask questions with their right answers from memory, and whether the model knows them."""

    async def one(question: str) -> tuple[dspy.Prediction, dspy.Prediction]:
        with recording(StepTrace()):
            return await asyncio.gather(
                program.step("closed_book", measured=True, question=question),
                program.step("self_knowledge", question=question),
            )

    pairs = await asyncio.gather(*(one(question) for question, _ in asked))
    known = [
        exact_match(recalled.answer or "", answers) for (_, answers), (recalled, _) in zip(asked, pairs, strict=True)
    ]
    return Asked(
        [question for question, _ in asked],
        np.array(known, dtype=bool),
        [recalled.probability or 0.0 for recalled, _ in pairs],
        np.array([judged.knows == "yes" for _, judged in pairs]),
    )


def by_probability(train: Asked, dev: Asked) -> Judge:
    """A threshold on the probability of the answer."""
    task = Task("self_knowledge", ("question", ANSWER_PROBABILITY), "knows", LABELS)
    with tempfile.TemporaryDirectory() as folder:
        card = calibrate_confidence(task, train.examples(), dev.examples(), "", Path(folder))
    threshold = card.threshold or 0.0
    return lambda asked: np.array(asked.probabilities) >= threshold


def by_encoder(train: Asked, dev: Asked) -> Judge:
    """A fine-tuned MiniLM, which reads the question alone."""
    task = Task("self_knowledge", ("question",), "knows", LABELS)
    folder = Path(tempfile.mkdtemp())
    card = train_classifier(
        task,
        train.examples(),
        dev.examples(),
        ClassifierTrainingConfig(calibrate="balanced_accuracy", seed=SEED),
        folder,
    )
    classifier = Classifier(folder, card)
    return lambda asked: np.array(
        [result["knows"] == "yes" for result in classifier.predict([{"question": q} for q in asked.questions])]
    )


def by_hidden_state(program: Program, model: str, train: Asked, dev: Asked) -> Judge:
    """Logistic regression on the model's hidden state where the answer is about to begin; layer and strength by dev."""
    folder = resolve(model.removeprefix("local/"))
    with quiet_loading():
        lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
    adapter, step = PlainAdapter(), program.closed_book

    @torch.inference_mode()
    def states(asked: Asked) -> np.ndarray:
        rows = []
        for question in asked.questions:
            messages = adapter.format(step.signature, step.demos, {"question": question})
            prompt = "\n\n".join(message["content"] for message in messages) + '\n\n{\n  "answer": "'
            out = lm(**tokenizer(prompt, return_tensors="pt"), output_hidden_states=True, logits_to_keep=1)
            depth = len(out.hidden_states) - 1  # the first are the embeddings
            layers = [out.hidden_states[round(share * depth)] for share in LAYERS]
            rows.append(np.stack([states[0, -1].float().numpy() for states in layers]))
        return np.stack(rows)

    seen, held_out = states(train), states(dev)
    tried = []
    for place in range(len(LAYERS)):
        for strength in STRENGTHS:
            fitted = make_pipeline(
                StandardScaler(), LogisticRegression(C=strength, class_weight="balanced", max_iter=2_000)
            ).fit(seen[:, place], train.known)
            sure = fitted.predict_proba(held_out[:, place])[:, 1]
            threshold = best_threshold([int(known) for known in dev.known], sure.tolist(), "balanced_accuracy")
            tried.append((balanced_accuracy_score(dev.known, sure >= threshold), place, threshold, fitted))
    _, place, threshold, fitted = max(tried, key=lambda one: one[0])
    return lambda asked: fitted.predict_proba(states(asked)[:, place])[:, 1] >= threshold


class Knows(dspy.Signature):
    """Judge whether you can answer the question correctly from what you know, without looking anything up."""

    question: str = dspy.InputField()
    knows: Noul = dspy.OutputField(desc="whether you can answer the question correctly from memory")


def by_reanchor(train: Asked, dev: Asked) -> Judge:
    """A probability that the model writes down when it is asked, with a threshold by DSPy's ``ReAnchor``."""
    both = train + dev
    # With these weights the mean is the balanced accuracy.
    weights = {known: 0.5 * len(both.known) / int((both.known == known).sum()) for known in (True, False)}
    examples = [
        dspy.Example(question=question, known=bool(known)).with_inputs("question")
        for question, known in zip(both.questions, both.known, strict=True)
    ]

    def right(example: dspy.Example, judged: dspy.Prediction) -> float:
        return weights[example.known] * (bool(judged.knows) == example.known)

    predict = ReAnchor(right).compile(dspy.Predict(Knows), trainset=examples)

    async def judge(questions: Sequence[str]) -> list[dspy.Prediction]:
        return await asyncio.gather(*(predict.acall(question=question) for question in questions))

    return lambda asked: np.array([bool(judged.knows) for judged in asyncio.run(judge(asked.questions))])


def resampled(known: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """Balanced accuracies of bootstrap resamples; known and unknown questions are resampled apart.

    For the same questions the resamples are the same, whoever judged, so that differences are paired.
    """
    rng = np.random.default_rng(SEED)
    sides = [np.flatnonzero(known == label) for label in np.unique(known)]
    drawn = [judged[rng.choice(some, (RESAMPLES, len(some)))] == known[some[0]] for some in sides]
    return np.mean([right.mean(axis=1) for right in drawn], axis=0)


def interval(scores: np.ndarray) -> list[float]:
    """The middle 95%."""
    return [float(bound) for bound in np.percentile(scores, [2.5, 97.5])]


def compare(name: str, asked: Asked, ways: dict[str, Judge]) -> list[dict[str, Any]]:
    """Balanced accuracies of the ways on a set with their intervals, and the paired differences from ours."""
    judged = {way: judge(asked) for way, judge in ways.items()}
    scores = {way: resampled(asked.known, answers) for way, answers in judged.items()}
    return [
        {
            "set": name,
            "n": len(asked.known),
            "known": int(asked.known.sum()),
            "way": way,
            "balanced_accuracy": (accuracy := balanced_accuracy_score(asked.known, judged[way])),
            "interval": interval(scores[way]),
            "difference": accuracy - balanced_accuracy_score(asked.known, judged[OURS]),
            "difference_interval": interval(scores[way] - scores[OURS]),
        }
        for way in ways
    ]


def measure(data: Path, lm: str, wanted: Sequence[str], most: int | None) -> list[dict[str, Any]]:
    """The wanted ways on every set, of which each has at most some questions."""
    files = sorted(data.glob("triviaqa/*.jsonl"))
    if not files:
        raise UserError(f"{data}: no triviaqa/*.jsonl in it; give the folder that holds the published files")
    trivia = [require(OpenItem, row) for file in files for row in read_rows(file)][:most]
    words = ["data=atlas", "program=ra_isf", "retriever=bm25", f"lm.default.model={lm}", "lm.default.max_tokens=24"]
    bench = Workbench(load_config(None, words))
    with bench.active():
        program = bench.program()
        program.prompt_format = "plain"
        examples = annotate(bench.data.split("train"), bench.data.corpus, None, distractors=0, seed=SEED)
        random.Random(SEED).shuffle(examples)
        program = labeled(program, examples, DEMOS)

        def questions(split: str) -> Asked:
            return asyncio.run(ask(program, [(q.question, q.answers) for q in bench.data.split(split)[:most]]))

        def hops(split: str) -> Asked:
            return asyncio.run(ask(program, _hops(bench.data.split(split))[:most]))

        train, dev = questions("train") + hops("train"), questions("dev") + hops("dev")
        sets = {
            "atlas": questions("test"),
            "hops of atlas": hops("test"),
            "TriviaQA": asyncio.run(ask(program, [(item.question, item.answer) for item in trivia])),
        }
        name, (first, second) = SIDE_BY_SIDE
        sets[name] = sets[first] + sets[second]
        ways = {way: MAKERS[way](program, lm, train, dev) for way in MAKERS if way in {*wanted, OURS}}
        return [row for name, asked in sets.items() for row in compare(name, asked, ways)]


def majority(train: Asked) -> Judge:
    """What is more common in training."""
    known = bool(2 * train.known.sum() >= len(train.known))
    return lambda asked: np.full(len(asked.known), known)


MAKERS: dict[str, Callable[[Program, str, Asked, Asked], Judge]] = {
    "majority": lambda program, lm, train, dev: majority(train),
    "prompted": lambda program, lm, train, dev: lambda asked: asked.says,
    "ReAnchor": lambda program, lm, train, dev: by_reanchor(train, dev),
    "encoder": lambda program, lm, train, dev: by_encoder(train, dev),
    "hidden state": by_hidden_state,
    OURS: lambda program, lm, train, dev: by_probability(train, dev),
}


def _hops(questions: Sequence[Question]) -> list[tuple[str, Sequence[str]]]:
    return list({hop.question: (hop.question, [hop.answer]) for q in questions for hop in q.hops}.values())


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the folder triviaqa")
    parser.add_argument("--lm", default="local/smollm2-135m-instruct", help="a model in this process")
    parser.add_argument("--questions", type=int, metavar="N", help="at most, of each set")
    parser.add_argument("--ways", nargs="+", choices=MAKERS, default=[*MAKERS], help="all by default")
    options = parser.parse_args()
    with user_mistakes():
        rows = measure(options.data, options.lm, options.ways, options.questions)
    headings = ("questions", "n", "known", "way", "balanced accuracy", "95%", "difference", "95%")
    table = Table(*headings, box=None, header_style="bold")
    for row in rows:
        figures = [
            text
            for name, between in (("balanced_accuracy", "interval"), ("difference", "difference_interval"))
            for text in (f"{row[name]:.2f}", "{:.2f} to {:.2f}".format(*row[between]))
        ]
        table.add_row(row["set"], str(row["n"]), str(row["known"]), row["way"], *figures)
    show({"self_knowledge": rows}, options.json, table)


if __name__ == "__main__":
    main()
