"""The teacher's runs are made ahead: those that DSPy's optimizers ask for, the same ones at any speed."""

import gc
import hashlib
import re
from collections import Counter
from dataclasses import replace

import dspy
import pytest
from dspy.utils.exceptions import LMServerError
from scripted import Listener, ScriptedLM, ScriptedRetriever, passage

from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.objective import Objective
from hoptimizer.models.usage import BudgetExhausted
from hoptimizer.optimizers import CompileContext
from hoptimizer.optimizers.format_check import WAVE
from hoptimizer.optimizers.prompt.bootstrap_loops import BootstrapLoop, mipro_loops, random_search_loops
from hoptimizer.optimizers.prompt.few_shot import BootstrapFewShot
from hoptimizer.optimizers.prompt.few_shot_search import BootstrapOptuna, BootstrapRandomSearch
from hoptimizer.optimizers.prompt.instructions import InferRules
from hoptimizer.optimizers.prompt.mipro import MIPROv2
from hoptimizer.optimizers.prompt.prefetch import prefetch
from hoptimizer.optimizers.prompt.search import finished
from hoptimizer.optimizers.teacher import teacher
from hoptimizer.programs import RAG, IRCoT
from hoptimizer.retrieval import Corpus

QUESTIONS = [
    Question(id=f"q{n}", question=f"Question {n}?", answers=[f"answer {n}"], passages=["p"], rationale=f"It is {n}.")
    for n in range(60)
]
SEED = 7


def drawn(text: str) -> int:
    return hashlib.sha256(text.encode()).digest()[0]


def script(field, inputs):
    """One question in four is answered right; a chain is one to four thoughts long."""
    question = inputs.get("question", "")
    number = re.search(r"\d+", question)
    right = number and drawn(question) < 64
    answer = f"answer {number[0]}" if right else "unknown"
    thoughts = (inputs.get("known") or inputs.get("facts", "")).count("Fact")
    if field == "look_up":
        return ""
    if field == "enough":
        return "yes" if thoughts > drawn(question) % 4 else "no"
    return answer if "answer" in field else f"Fact {thoughts}."


def make_context(program=None, *, teacher=None, workers=WAVE):
    passages = [passage("p"), passage("other")]
    program = program or RAG(ScriptedRetriever({q.question: passages for q in QUESTIONS}), k=2)
    corpus, objective = Corpus(passages), Objective.parse("em")
    return CompileContext(
        program, QUESTIONS, QUESTIONS[:4], corpus, objective, teacher, SEED, workers, None, Listener()
    )


def examples():
    return [question.to_dspy() for question in QUESTIONS]


class WritingLM(ScriptedLM):
    """Also writes the instructions and rules that optimizers ask for, which they do without async."""

    def __call__(self, prompt=None, messages=None, **kwargs):
        fields = re.findall(r"the field `\[\[ ## (\w+) ## ]]`|then `\[\[ ## (\w+) ## ]]`", messages[-1]["content"])
        return [self._format_answer_fields({field or last: "words" for field, last in fields})]


@pytest.fixture(autouse=True)
def student():
    """The language model that is not the teacher's."""
    lm = WritingLM(script)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        yield lm


def asked(lm: ScriptedLM) -> Counter:
    return Counter(str(call) for call in lm.asked)


@pytest.fixture
def bootstrapped(monkeypatch):
    """The demonstrations of each program that ``dspy.BootstrapFewShot`` makes, by itself or within an optimizer."""
    made, compile_by = [], dspy.BootstrapFewShot.compile

    def compile_and_remember(*args, **kwargs):
        program = compile_by(*args, **kwargs)
        made.append(demos(program))
        return program

    monkeypatch.setattr(dspy.BootstrapFewShot, "compile", compile_and_remember)
    return made


def demos(program: dspy.Module) -> list:
    return [[demo.toDict() for demo in predictor.demos] for predictor in program.predictors()]


def bootstrap(context, teacher, settings, labeled):
    optimizer = dspy.BootstrapFewShot(
        context.objective, 0.5, settings, max_bootstrapped_demos=3, max_labeled_demos=labeled
    )
    return optimizer.compile(context.program, teacher=teacher, trainset=examples())


def random_search(context, teacher, settings, labeled):
    optimizer = dspy.BootstrapFewShotWithRandomSearch(
        context.objective, settings, 4, labeled, num_candidate_programs=3, metric_threshold=0.5
    )
    return optimizer.compile(context.program, teacher=teacher, trainset=examples(), valset=examples()[:2])


def optuna(context, teacher, settings, labeled):
    optimizer = dspy.BootstrapFewShotWithOptuna(
        context.objective, settings, max_labeled_demos=labeled, num_candidate_programs=1
    )
    return optimizer.compile(context.program, teacher=teacher, max_demos=3, trainset=examples(), valset=examples()[:2])


def mipro(context, teacher, settings, labeled):
    optimizer = dspy.MIPROv2(
        context.objective,
        teacher_settings=settings,
        max_bootstrapped_demos=4,
        max_labeled_demos=labeled,
        auto=None,
        num_candidates=6,
        seed=SEED,
        metric_threshold=0.5,
    )
    arguments = {"trainset": examples(), "valset": examples()[:2], "num_trials": 1, "minibatch": False}
    return optimizer.compile(context.program, teacher=teacher, **arguments)


def infer_rules(context, teacher, settings, labeled):
    optimizer = dspy.InferRules(
        1, 1, None, settings, metric=context.objective, metric_threshold=0.5, max_bootstrapped_demos=3,
        max_labeled_demos=labeled,
    )  # fmt: skip
    # It writes into the signatures, which would be other tests' too.
    student = finished(context, context.program)
    return optimizer.compile(student, teacher=teacher, trainset=examples(), valset=examples()[:2])


OPTIMIZERS = {
    "bootstrap": (bootstrap, 0.5, 2, lambda train: [BootstrapLoop(train, 3, 2)]),
    "bootstrap, no labeled ones": (bootstrap, 0.5, 0, lambda train: [BootstrapLoop(train, 3, 0)]),
    "random search": (random_search, 0.5, 2, lambda train: random_search_loops(BootstrapLoop(train, 4, 2), 3)),
    "optuna, any score": (optuna, 1e-9, 2, lambda train: [BootstrapLoop(train, 3, 2)]),
    "mipro": (mipro, 0.5, 2, lambda train: mipro_loops(BootstrapLoop(train, 4, 2), 6, SEED)),
    "mipro, no labeled ones": (mipro, 0.5, 0, lambda train: mipro_loops(BootstrapLoop(train, 4, 0), 6, SEED)),
    "infer rules": (infer_rules, 0.5, 2, lambda train: [BootstrapLoop(train, 3, 2)]),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_dspys_optimizers_find_every_run_of_their_teacher_made(name, bootstrapped):
    compile_by, threshold, labeled, loops = OPTIMIZERS[name]
    alone = WritingLM(script)
    compile_by(make_context(), make_context().program, {"lm": alone}, labeled)
    expected = bootstrapped.copy()
    bootstrapped.clear()
    ahead = WritingLM(script)
    context = make_context(teacher=ahead)
    taught = prefetch(context, loops(examples()), threshold)
    made = asked(ahead)
    compile_by(context, taught, {"lm": ahead}, labeled)
    assert asked(ahead) == made, "nothing is asked anew"
    assert bootstrapped == expected
    assert len(expected) == len(loops(examples()))
    assert not asked(alone).keys() - made.keys()
    assert len(made) - len(asked(alone)) < WAVE * len(loops(examples())), (
        "at most a part of each loop's last wave is spare"
    )


def test_a_teacher_of_which_no_run_is_good_enough_is_told_of(caplog):
    context = make_context(teacher=WritingLM(script))
    prefetch(context, [BootstrapLoop(examples(), 4, 0)], 1.0)
    assert not caplog.messages
    costly = replace(context, objective=Objective.parse({"em": 1.0, "lm_calls": -0.1}))
    prefetch(costly, [BootstrapLoop(examples(), 4, 0)], 1.0)
    [line] = caplog.messages
    best = "the best of 60 runs of the teacher has em - 0.1 lm_calls 0.90"
    assert line.startswith(f"optimizer.metric_threshold=1: {best}")


SHARED = {"max_bootstrapped_demos": 3, "max_labeled_demos": 3, "metric_threshold": 0.5}
OURS = [
    BootstrapFewShot(**SHARED),
    BootstrapRandomSearch(num_candidate_programs=2, **SHARED),
    BootstrapOptuna(num_candidate_programs=2, **SHARED),
    MIPROv2(num_candidates=5, num_trials=1, **SHARED),
    InferRules(num_candidates=1, **SHARED),
]


@pytest.mark.parametrize("program", [RAG, IRCoT])
@pytest.mark.parametrize("optimizer", OURS, ids=lambda optimizer: type(optimizer).__name__)
def test_our_optimizers_bootstrap_as_dspys_and_ask_nothing_anew(program, optimizer, bootstrapped, monkeypatch):
    def replace_prefetch(by):
        for module in ("few_shot", "few_shot_search", "mipro", "instructions"):
            monkeypatch.setattr(f"hoptimizer.optimizers.prompt.{module}.prefetch", by)

    def prefetch_and_count(*args):
        taught = prefetch(*args)
        made_ahead.append(len(ahead.asked))
        return taught

    made = program(ScriptedRetriever({q.question: [passage("p")] for q in QUESTIONS}), k=2)
    ahead, made_ahead = WritingLM(script), []
    replace_prefetch(prefetch_and_count)
    optimizer.compile(make_context(made, teacher=ahead))
    assert made_ahead == [len(ahead.asked)]
    found = bootstrapped.copy()
    bootstrapped.clear()
    replace_prefetch(lambda context, *_: teacher(context))
    optimizer.compile(make_context(made, teacher=WritingLM(script)))
    assert found == bootstrapped
    assert all(demo.get("augmented") for program in found for shown in program for demo in shown[:1])


def test_the_same_is_asked_whatever_the_speed():
    calls = []
    for workers, delay in [(1, 0), (3, 0.001), (64, 0.004), (64, 0)]:
        lm = ScriptedLM(script, lambda field, inputs, delay=delay: delay * drawn(str(inputs)) / 255)
        made = IRCoT(ScriptedRetriever({}), k=2)
        prefetch(
            make_context(made, teacher=lm, workers=workers),
            random_search_loops(BootstrapLoop(examples(), 4, 0), 3),
            0.5,
        )
        calls.append(asked(lm))
        assert lm.most <= workers
    assert all(call == calls[0] for call in calls)
    assert max(calls[0].values()) == 1, "what several loops ask alike is asked once"


def test_questions_of_all_loops_are_under_way_at_once():
    lm = ScriptedLM(script, together=40)
    prefetch(make_context(teacher=lm, workers=40), random_search_loops(BootstrapLoop(examples(), 4, 2), 3), 0.5)
    assert lm.most == 40


def test_a_wave_need_not_wait_for_the_end_of_one_that_cannot_be_enough():
    first = {question.question for question in QUESTIONS[:WAVE]}
    lm = ScriptedLM(
        lambda field, inputs: "unknown", lambda field, inputs: 0.05 if inputs["question"] == "Question 0?" else 0
    )
    prefetch(make_context(teacher=lm, workers=4), [BootstrapLoop(examples(), 4, 0)], 0.5)
    order = [inputs["question"] for _, inputs in lm.asked]
    assert set(order[:WAVE]) == first
    assert len(order) == len(QUESTIONS)


def test_a_run_that_failed_is_not_made_again():
    def failing(field, inputs):
        if drawn(inputs["question"]) % 5 == 0:
            raise LMServerError("out of order")
        return script(field, inputs)

    alone, ahead = ScriptedLM(failing), ScriptedLM(failing)
    expected = bootstrap(make_context(), make_context().program, {"lm": alone}, 2)
    context = make_context(teacher=ahead)
    taught = prefetch(context, [BootstrapLoop(examples(), 3, 2)], 0.5)
    made = asked(ahead)
    assert demos(bootstrap(context, taught, {"lm": ahead}, 2)) == demos(expected)
    assert asked(ahead) == made


def test_a_compile_that_is_stopped_leaves_nothing_under_way(caplog):
    def stopping(field, inputs):
        if len(lm.asked) > 20:
            raise BudgetExhausted
        return "unknown"

    lm = ScriptedLM(stopping, lambda field, inputs: 0.01 * drawn(inputs["question"]) / 255)
    with pytest.raises(BudgetExhausted):
        prefetch(make_context(teacher=lm), random_search_loops(BootstrapLoop(examples(), 4, 2), 3), 0.5)
    gc.collect()
    assert lm.running == 0
    assert not caplog.records, "no exception is left that nobody heard of"


def test_what_was_not_made_ahead_is_made_when_it_is_asked_for(student):
    context = make_context()
    taught = prefetch(context, [BootstrapLoop(examples()[:4], 4, 0)], 0.5)
    assert len(student.asked) == 4
    copy = taught.deepcopy()
    assert copy(question="Question 1?").answer == taught(question="Question 1?").answer
    assert len(student.asked) == 4
    assert copy(question="Question 30?").answer
    assert len(student.asked) == 5
    copy.reader.demos = examples()[:1]
    copy(question="Question 1?")
    assert len(student.asked) == 6, "with other demonstrations it is another run"
    with dspy.context(lm=ScriptedLM(script)):
        taught(question="Question 1?")
    assert len(student.asked) == 6
