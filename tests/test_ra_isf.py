"""RA-ISF: its control flow on a scripted language model, and end to end on the embedded one."""

import asyncio
import json
import random
from dataclasses import replace

import dspy
import pytest
from dspy.utils.exceptions import ContextWindowExceededError, LMServerError
from scripted import ScriptedLM, ScriptedRetriever, passage

from hoptimizer.common.errors import UserError
from hoptimizer.config import load_config
from hoptimizer.eval.runner import evaluate
from hoptimizer.programs import RAISF, build_program, settings_model
from hoptimizer.programs.question_tree import normalized, subquestions
from hoptimizer.programs.record import counts
from hoptimizer.programs.trace import SharedTasks, StepTrace, recording
from hoptimizer.workbench import Workbench

# After the multi-iteration example of the paper's appendix G: the fourth sub-question is split up again.
VOICE = "Would Kelly Clarkson's voice shake glass?"
FACTORS = "What decides whether a sound breaks glass?"
RESONANCE = "What is the resonance frequency of glass?"
HUMAN = "Can a human voice reach such frequencies?"
ABILITY = "Can Kelly Clarkson reach such frequencies?"
EVIDENCE = "What is known about the range of Kelly Clarkson?"
VERSATILE = "Is Kelly Clarkson's voice versatile?"
NOTE = "At what note does glass vibrate?"
SPLITS = {VOICE: [FACTORS, RESONANCE, HUMAN, ABILITY], ABILITY: [EVIDENCE, VERSATILE, NOTE]}
KNOWN = {FACTORS: "resonance", HUMAN: "yes", VERSATILE: "yes", NOTE: "F sharp"}


class World:
    """A script: what the model knows, which passages it takes for relevant, and what it splits a question into."""

    def __init__(self, known=(), relevant=(), splits=(), read=None):
        self.known, self.relevant, self.splits, self.read = dict(known), set(relevant), dict(splits), read or {}

    def __call__(self, field, inputs):
        question = inputs["question"]
        if field == "knows":
            return "yes" if question in self.known else "no"
        if field == "relevant":
            return "yes" if inputs["passage"].split(":")[0].lower() in self.relevant else "no"
        if field == "sufficient":
            return "yes" if all(id.title() in inputs["retrieved"] for id in self.relevant) else "no"
        if field in ("subquestions", "ordered_subquestions"):
            return json.dumps(self.splits.get(question, []))
        if "context" in inputs:
            return self.read.get(question, "from reading")
        if "findings" in inputs:
            return "from findings"
        return self.known[question]


class Busy(dict):
    """Finds five passages for whatever is asked, each its own."""

    def get(self, query, default=None):
        return [passage(f"{query} {number}") for number in range(5)]


def program(found=None, **options):
    return RAISF(ScriptedRetriever(Busy() if found is None else found), **options)


def chat(lm):
    return dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False))


def run(program, script, question, **lm_options):
    lm = ScriptedLM(script, **lm_options)
    with chat(lm):
        prediction = program(question=question)
    return prediction, lm


def names(prediction):
    return [(record.step, record.depth) for record in prediction.steps]


def outcomes(prediction):
    return {r.inputs["question"]: (r.outputs["by"], r.depth) for r in prediction.steps if r.kind == "outcome"}


def voice(**options):
    found = {
        VOICE: [passage("idol")],
        RESONANCE: [passage("noise"), passage("glass"), passage("shatter")],
        ABILITY: [passage("idol"), passage("airflow")],
        EVIDENCE: [passage("range"), passage("glass")],
    }
    return program(found, **options), World(KNOWN, {"glass", "shatter", "range"}, SPLITS)


def test_what_the_model_knows_it_answers_at_once():
    question = "From which country did Angola achieve independence in 1975?"
    prediction, _ = run(program(), World({question: "Portugal"}), question)
    assert prediction.answer == "Portugal"
    assert prediction.passages == []
    assert names(prediction) == [("self_knowledge", 0), ("closed_book", 0), ("settle", 0)]
    expected = {"lm_calls": 2, "retrievals": 0, "iterations": 1, "subquestions": 0, "by_self_knowledge": 1}
    assert counts(prediction.steps) | expected == counts(prediction.steps)


def test_what_it_knows_and_can_not_say_it_looks_up():
    found, world = {"Where?": [passage("war")]}, World({"Where?": ""}, relevant={"war"}, read={"Where?": "Oslo"})

    def script(field, inputs):
        return ("no field",) if field == "answer" and "context" not in inputs else world(field, inputs)

    lm = ScriptedLM(script)
    with chat(lm):
        prediction = program(found, k=1)(question="Where?")
    assert prediction.answer == "Oslo"
    assert [name for name, _ in names(prediction)][-3:] == ["relevance", "reader", "settle"]


def test_what_it_does_not_know_it_reads_in_the_relevant_passages_alone():
    question = "Who is the mother of the director of the film Polish-Russian War?"
    found = {question: [passage(id) for id in ("war", "director", "plot", "festival", "shooting")]}
    prediction, lm = run(program(found), World(relevant={"director"}, read={question: "Braunek"}), question)
    assert prediction.answer == "Braunek"
    assert [p.id for p in prediction.passages] == ["director"]
    assert [field for field, _ in lm.asked] == ["knows", *["relevant"] * 5, "answer"]
    judged = [r.inputs["passage"] for r in prediction.steps if r.step == "relevance"]
    assert judged == ["war", "director", "plot", "festival", "shooting"]
    assert prediction.steps[-2].inputs == {"question": question, "context": ["director"]}
    expected = {"lm_calls": 7, "retrievals": 1, "iterations": 1, "subquestions": 0, "by_relevance": 1, "by_unknown": 0}
    assert counts(prediction.steps) | expected == counts(prediction.steps)


def test_what_no_passage_helps_with_is_split_up_and_its_parts_as_well():
    prediction, lm = run(*voice(), VOICE)
    assert prediction.answer == "from findings"
    assert outcomes(prediction) == {
        FACTORS: ("self_knowledge", 1),
        RESONANCE: ("relevance", 1),
        HUMAN: ("self_knowledge", 1),
        EVIDENCE: ("relevance", 2),
        VERSATILE: ("self_knowledge", 2),
        NOTE: ("self_knowledge", 2),
        ABILITY: ("decomposition", 1),
        VOICE: ("decomposition", 0),
    }
    assert [p.id for p in prediction.passages] == ["glass", "shatter", "range"]
    findings = next(
        inputs["findings"] for _, inputs in lm.asked if "findings" in inputs and VOICE in inputs["question"]
    )
    for part in (f"{FACTORS} resonance", f"{RESONANCE} from reading", f"{HUMAN} yes", f"{ABILITY} from findings"):
        assert part in findings
    expected = {"retrievals": 4, "subquestions": 7, "iterations": 3, "by_decomposition": 1, "parse_failures": 0}
    assert counts(prediction.steps) | expected == counts(prediction.steps)


def test_no_question_is_split_up_deeper_than_the_limit():
    def endless(field, inputs):
        question = inputs["question"]
        if field == "subquestions":
            return json.dumps([f"{question}a", f"{question}b", f"{question}c"])
        return "from findings" if field == "answer" else "no"

    prediction, lm = run(program(max_depth=2, max_subquestions=2), endless, "q")
    assert max(record.depth for record in prediction.steps if record.kind == "retrieval") == 2
    assert counts(prediction.steps)["retrievals"] == 1 + 2 + 4
    deepest = [r.outputs for r in prediction.steps if r.kind == "outcome" and r.depth == 2]
    assert deepest == [{"answer": "unknown", "by": "unknown", "why": "depth"}] * 4
    assert "qaa unknown" in str(lm.asked)


def test_at_the_limit_nothing_is_asked_for_an_answer_that_is_unknown_anyway():
    prediction, lm = run(program(max_depth=0), World(splits={"q": ["a", "b"]}), "q")
    assert prediction.answer == "unknown"
    assert [field for field, _ in lm.asked] == ["knows", *["relevant"] * 5]
    prediction, lm = run(program(max_depth=1), World(splits={"q": ["a", "b"]}), "q")
    assert prediction.answer == "from findings"
    assert [inputs["question"] for field, inputs in lm.asked if field in ("subquestions", "answer")] == ["q", "q"]


def test_a_subquestion_that_repeats_what_it_is_a_part_of_is_unknown_at_once():
    splits = {"Who sang?": ["Who wrote it?"], "Who wrote it?": ["  who SANG", "When?"]}
    prediction, lm = run(program({}), World({"When?": "1999"}, splits=splits), "Who sang?")
    unknown = [(r.inputs["question"], r.outputs["why"]) for r in prediction.steps if r.outputs.get("by") == "unknown"]
    assert unknown == [("who SANG", "repeat")]
    assert sorted(inputs["question"] for field, inputs in lm.asked if field == "knows") == [
        "When?",
        "Who sang?",
        "Who wrote it?",
    ]


def test_a_subquestion_that_is_its_question_is_dropped_before_it_costs_anything():
    splits = {"Who sang?": ["1. who sang", "When?", "Where?"]}
    prediction, _ = run(
        program({}, max_calls=8), World({"When?": "1999", "Where?": "Rome"}, splits=splits), "Who sang?"
    )
    assert outcomes(prediction).keys() == {"Who sang?", "When?", "Where?"}
    assert prediction.answer == "from findings"
    prediction, lm = run(program({}), World(splits={"Who sang?": ["Who sang?!"]}), "Who sang?")
    assert prediction.steps[-1].outputs["why"] == "no_subquestions"
    assert [field for field, _ in lm.asked] == ["knows", "subquestions"]


def test_a_repeated_subquestion_is_solved_once_wherever_it_stands():
    splits = {"q": ["a", "A ?", "b"], "a": ["x", "y"], "b": ["y", "x"]}
    delay = lambda field, inputs: random.random() / 100  # noqa: E731
    prediction, lm = run(program(), World({"y": "Y"}, splits=splits), "q", delay=delay)
    asked = [inputs["question"] for field, inputs in lm.asked if field == "knows"]
    assert sorted(asked) == ["a", "b", "q", "x", "y"]
    assert counts(prediction.steps)["lm_calls"] == len(lm.asked)
    assert counts(prediction.steps)["subquestions"] == 6


@pytest.mark.parametrize("seed", range(5))
def test_subquestions_that_are_part_of_each_other_do_not_wait_for_each_other(seed):
    splits = {"q": ["a", "b"], "a": ["b", "c"], "b": ["c", "a"], "c": ["a", "b"]}
    rng = random.Random(seed)

    async def solve():
        lm = ScriptedLM(World(splits=splits), lambda field, inputs: rng.random() / 200)
        with chat(lm):
            return await asyncio.wait_for(program().acall(question="q"), 10)

    prediction = asyncio.run(solve())
    assert prediction.answer == "from findings"
    assert counts(prediction.steps)["retrievals"] == 4


def plain(prediction):
    return [replace(record, seconds=0.0) for record in prediction.steps]


@pytest.mark.parametrize("max_calls", [None, 12, 25])
def test_neither_answer_nor_records_nor_trace_depend_on_which_call_is_first(max_calls):
    splits = SPLITS | {EVIDENCE: [NOTE, RESONANCE, "Where?"], RESONANCE: ["Where?", EVIDENCE]}

    def shared(seed):
        rng = random.Random(seed)
        lm = ScriptedLM(World(KNOWN, {"where? 3"}, splits), lambda field, inputs: rng.random() / 100)
        with chat(lm), dspy.context(trace=[]):
            prediction = program(max_calls=max_calls)(question=VOICE)
            trace = [(name.signature.__name__, inputs, dict(out)) for name, inputs, out in dspy.settings.trace]
        return prediction.answer, [p.id for p in prediction.passages], plain(prediction), trace

    first = shared(0)
    assert len(first[3]) == sum(record.kind == "lm" for record in first[2])
    assert all(shared(seed) == first for seed in range(1, 5))


def test_bootstrapping_gives_every_step_demonstrations_of_its_own():
    solver, world = voice()
    lm = ScriptedLM(world, lambda field, inputs: random.random() / 100)
    optimizer = dspy.BootstrapFewShot(metric=lambda *_: True, max_bootstrapped_demos=1, max_labeled_demos=0)
    with chat(lm):
        compiled = optimizer.compile(solver, trainset=[dspy.Example(question=VOICE).with_inputs("question")])
    for name, predictor in compiled.named_predictors():
        assert predictor.demos, name
        fields = set(predictor.signature.fields)
        assert all(fields <= set(demo.keys()) for demo in predictor.demos), name


@pytest.mark.parametrize("max_calls", [1, 2, 3, 6, 7, 8, 9, 12, 20, 40, 80])
def test_a_budget_of_calls_is_kept_and_the_rest_is_unknown(max_calls):
    solver, world = voice(max_calls=max_calls)
    prediction, lm = run(solver, world, VOICE)
    assert len(lm.asked) == counts(prediction.steps)["lm_calls"] <= max_calls
    without = [r for r in prediction.steps if r.outputs.get("why") == "calls"]
    assert bool(without) == (max_calls < 80)
    assert prediction.answer == ("from findings" if max_calls > 3 else "unknown")


def test_a_budget_that_is_short_judges_the_best_passages_and_keeps_a_call_for_reading():
    found = {"q": [passage("a"), passage("b"), passage("c")]}
    prediction, _ = run(program(found, max_calls=4), World(relevant={"b", "c"}), "q")
    assert [record.step for record in prediction.steps] == [
        *["self_knowledge", "retrieve", "relevance", "relevance", "reader", "settle"]
    ]
    assert [p.id for p in prediction.passages] == ["b"]


def test_without_self_knowledge_every_question_is_searched():
    solver, world = voice(self_knowledge=False)
    prediction, lm = run(solver, world, VOICE)
    assert "knows" not in {field for field, _ in lm.asked}
    assert counts(prediction.steps)["by_self_knowledge"] == 0
    assert FACTORS in solver.retriever.queries


def test_without_relevance_what_is_not_known_is_split_up_at_once():
    solver, world = voice(relevance="none", max_depth=2)
    prediction, _ = run(solver, world, VOICE)
    assert solver.retriever.queries == []
    assert outcomes(prediction)[RESONANCE] == ("unknown", 1)
    assert outcomes(prediction)[VOICE] == ("decomposition", 0)


@pytest.mark.parametrize(("relevant", "by"), [({"a", "c"}, "relevance"), ({"a", "x"}, "unknown")])
def test_passages_that_suffice_together_are_judged_in_one_call_and_all_read(relevant, by):
    found = {"q": [passage(id) for id in "abc"]}
    solver = program(found, relevance="sufficiency", max_calls=3, decomposition=False)
    prediction, lm = run(solver, World(relevant=relevant), "q")
    assert outcomes(prediction)["q"] == (by, 0)
    assert [field for field, _ in lm.asked] == ["knows", "sufficient", *["answer"] * (by == "relevance")]
    judged = next(record for record in prediction.steps if record.step == "sufficiency")
    assert judged.inputs == {"question": "q", "retrieved": ["a", "b", "c"]}
    assert [p.id for p in prediction.passages] == (["a", "b", "c"] if by == "relevance" else [])


def test_where_nothing_is_found_nothing_is_judged():
    prediction, lm = run(program({}, relevance="sufficiency", decomposition=False), World(), "q")
    assert prediction.answer == "unknown"
    assert [field for field, _ in lm.asked] == ["knows"]


BUILDER = "Where was the builder of the mill born?"
BUILT, BORN, OLD = "Who built the mill?", "Where was #1 born?", "How old is the mill?"


def ordered(parts, known, max_calls=100, **lm_options):
    world = World(known, splits={BUILDER: parts})
    made = program({}, ordered_subquestions=True, max_depth=1, max_calls=max_calls)
    return run(made, world, BUILDER, **lm_options)


def test_a_reference_is_asked_after_the_answer_it_names_and_everything_else_together():
    known = {BUILT: "Ada", "Where was Ada born?": "Bern", OLD: "90 years"}
    prediction, lm = ordered([BUILT, BORN, OLD], known, together=2)
    asked = [inputs["question"] for field, inputs in lm.asked if field == "knows"]
    assert asked == [BUILDER, BUILT, OLD, "Where was Ada born?"]
    assert lm.most == 2
    findings = next(inputs["findings"] for _, inputs in lm.asked if "findings" in inputs)
    assert all(part in findings for part in (f"{BUILT} Ada", "Where was Ada born? Bern", f"{OLD} 90 years"))
    settled = [r.inputs["question"] for r in prediction.steps if r.kind == "outcome"]
    assert settled == [BUILT, "Where was Ada born?", OLD, BUILDER]


def test_without_the_option_references_are_text_and_all_subquestions_are_solved_together():
    world = World({BUILT: "Ada", BORN: "?", OLD: "90 years"}, splits={BUILDER: [BUILT, BORN, OLD]})
    prediction, lm = run(program({}), world, BUILDER, together=3)
    assert outcomes(prediction)[BORN] == ("self_knowledge", 1)
    assert lm.most == 3


@pytest.mark.parametrize("known", [{}, {BUILT: "Unknown."}, {BUILT: "I don't know who built it, that is all."}])
def test_a_reference_to_an_unknown_answer_is_unknown_and_costs_nothing(known):
    prediction, lm = ordered([BUILT, BORN, "Is #2 old?"], known)
    why = {r.inputs["question"]: r.outputs.get("why") for r in prediction.steps if r.kind == "outcome" and r.depth}
    assert why == {BUILT: "depth", BORN: "reference", "Is #2 old?": "reference"}
    # What a model claims to know and then does not is looked up.
    assert BUILT in [record.inputs["query"] for record in prediction.steps if record.kind == "retrieval"]
    assert "#" not in str([inputs for field, inputs in lm.asked if field == "knows"])
    assert prediction.answer == "from findings"


@pytest.mark.parametrize("max_calls", [4, 7, 9, 14])
def test_references_keep_the_budget_and_do_not_depend_on_which_call_is_first(max_calls):
    def shared(seed):
        rng = random.Random(seed)
        parts = [BUILT, OLD, BORN, "When was the mill of #1 sold?"]
        delay = lambda field, inputs: rng.random() / 100  # noqa: E731
        return ordered(parts, {BUILT: "Ada", OLD: "90 years"}, max_calls, delay=delay)

    first, lm = shared(0)
    assert len(lm.asked) == counts(first.steps)["lm_calls"] <= max_calls
    assert all(plain(shared(seed)[0]) == plain(first) for seed in range(1, 4))


@pytest.mark.parametrize(
    ("texts", "parts"),
    [
        (["1. Who?", "2. Where is #1?"], [("Who?", {}), ("Where is #1?", {1: 0})]),
        (["Who?", "who", "Where?", "Is #2 in #3?"], [("Who?", {}), ("Where?", {}), ("Is #2 in #3?", {2: 0, 3: 1})]),
        (["Q?", "", "Is #1 in #2?"], [("Is #1 in #2?", {1: None, 2: None})]),
        (["What was the #1 hit?", "Is #2 or #9 it?"], [("What was the #1 hit?", {}), ("Is #2 or #9 it?", {})]),
        (["Who?", "Where?", "When?", "Is #1 here?"], [("Who?", {}), ("Where?", {}), ("When?", {})]),
    ],
)
def test_references_are_to_earlier_items_of_the_models_own_list(texts, parts):
    assert [(part.text, part.references) for part in subquestions(texts, "q", 3, references=True)] == parts


def test_without_decomposition_what_no_passage_helps_with_is_unknown():
    prediction, _ = run(*voice(decomposition=False), VOICE)
    assert prediction.answer == "unknown"
    assert outcomes(prediction) == {VOICE: ("unknown", 0)}


def test_the_reader_may_think_in_a_chain():
    found = {"q": [passage("a")]}
    world = World(relevant={"a"})

    def script(field, inputs):
        said = {"reasoning": "It is said.", "answer": "Rome"}
        return said.get(field) or world(field, inputs)

    assert run(program(found, reader="cot"), script, "q")[0].answer == "Rome"


def test_passages_are_judged_together_and_subquestions_are_solved_together():
    splits = {"q": ["a", "b", "c", "d"]}
    _, lm = run(program(max_depth=0), World(splits=splits), "q", together=5)
    assert lm.most == 5
    _, lm = run(program(max_depth=1), World(splits=splits), "q", together=20)
    assert lm.most == 20


def test_an_error_of_the_model_ends_the_question_and_leaves_nothing_running():
    def script(field, inputs):
        if field == "relevant" and inputs["question"] == "x":
            raise LMServerError(message="overloaded")
        return World(splits={"q": ["a", "b"], "a": ["x"], "b": ["x", "y"]})(field, inputs)

    async def solve():
        before = len(asyncio.all_tasks())
        lm = ScriptedLM(script, lambda field, inputs: random.random() / 100)
        with chat(lm), pytest.raises(LMServerError, match="overloaded"):
            await program().acall(question="q")
        assert len(asyncio.all_tasks()) == before

    asyncio.run(solve())


def test_a_branch_that_is_stopped_does_not_stop_what_another_waits_for():
    async def slow():
        await asyncio.sleep(0.02)
        return "done"

    async def main():
        with recording(StepTrace()):
            async with SharedTasks() as shared:
                stopped, other = (asyncio.create_task(shared("x", slow)) for _ in range(2))
                await asyncio.sleep(0.005)
                stopped.cancel()
                assert await other == "done"

    asyncio.run(main())


def test_a_judgement_that_is_neither_yes_nor_no_counts_as_a_failure_and_as_no():
    def script(field, inputs):
        return "Certainly!" if field in ("knows", "relevant") else ("[[ no list",) if field == "subquestions" else "?"

    prediction, _ = run(program(), script, "q")
    assert prediction.answer == "unknown"
    expected = {"parse_failures": 7, "lm_calls": 7, "by_unknown": 1}
    assert counts(prediction.steps) | expected == counts(prediction.steps)


def test_an_empty_decomposition_is_unknown():
    prediction, _ = run(program({}), World(splits={"q": ["", "  "]}), "q")
    assert prediction.answer == "unknown"
    assert prediction.steps[-1].outputs["why"] == "no_subquestions"


def test_of_fifty_subquestions_the_first_five_different_ones_are_kept():
    splits = {"q": ["1. Same one?", "same one", *(f"{n}) Question {n}?" for n in range(2, 50))]}
    prediction, _ = run(program({}, max_depth=1), World(splits=splits), "q")
    asked = [r.inputs["question"] for r in prediction.steps if r.kind == "outcome" and r.depth == 1]
    assert asked == ["Same one?", "Question 2?", "Question 3?", "Question 4?", "Question 5?"]


@pytest.mark.parametrize("unit", ["word ", "字"])
def test_a_passage_of_100_kb_is_cut_until_it_fits(unit):
    class Narrow(ScriptedLM):
        async def acall(self, prompt=None, messages=None, **kwargs):
            if sum(len(message["content"]) for message in messages) > 20_000:
                raise ContextWindowExceededError(message="too long")
            return await super().acall(prompt, messages, **kwargs)

    text = unit * (100_000 // len(unit.encode()))
    lm = Narrow(World(relevant={"long"}))
    with chat(lm):
        prediction = program({"q": [passage("short"), passage("long", text)]})(question="q")
    assert prediction.answer == "from reading"
    assert [p.id for p in prediction.passages] == ["long"]
    assert any(unit * 100 in inputs.get("passage", "") for _, inputs in lm.asked)


@pytest.mark.parametrize("question", ["?", "a", "谁导演了这部电影？", "מי ביים את הסרט?", "किसने लिखा?"])
def test_any_question_is_taken(question):
    splits = {question: ["?", "¿", "谁？", "किसने देखा?"]}
    prediction, _ = run(program({question: [passage("a", "文" * 50)]}), World(splits=splits), question)
    assert prediction.answer == "from findings"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Who sang it?", "  who  sang IT ", True),
        ("“Who sang it?”", "Who sang it", True),
        ("What is C?", "What is C++?", False),
        ("What is C?", "What is C#?", False),
        ("कि?", "की?", False),
        ("?", "!", False),
    ],
)
def test_questions_that_differ_by_case_spaces_or_outer_punctuation_are_the_same(one, other, same):
    assert (normalized(one) == normalized(other)) == same


def test_a_small_model_takes_a_step_over():
    seen = []

    async def judge(inputs):
        seen.append(inputs)
        return {"relevant": "yes" if "B" in inputs["passage"] else "no", "probability": 0.9}

    solver = program({"q": [passage("a"), passage("b")]}, max_calls=2)
    solver.models = {"relevance": judge}
    prediction, lm = run(solver.deepcopy(), World(), "q")
    assert [p.id for p in prediction.passages] == ["b"]
    assert seen[0] == {"passage": str(passage("a")), "question": "q"}
    records = [record for record in prediction.steps if record.step == "relevance"]
    assert [(record.kind, record.calls) for record in records] == [("model", 0)] * 2
    assert records[1].outputs == {"relevant": "yes", "probability": 0.9}
    assert len(lm.asked) == 2
    assert counts(prediction.steps) | {"lm_calls": 2, "model_calls": 2} == counts(prediction.steps)


def test_a_small_model_that_writes_something_else_is_a_failure():
    async def judge(inputs):
        return {"relevant": "perhaps"}

    async def split(inputs):
        return {"parts": []}

    solver = program()
    solver.models = {"relevance": judge, "decompose": split}
    prediction, _ = run(solver, World(), "q")
    assert prediction.answer == "unknown"
    assert counts(prediction.steps)["parse_failures"] == 6
    assert "perhaps" in next(r.failure for r in prediction.steps if r.failure)


def test_the_config_names_the_small_models_of_steps():
    settings = load_config(None, ["data=atlas", "program=ra_isf", "program.steps.relevance=models/relevance"]).program
    asked = []

    async def judge(inputs):
        return {"relevant": "no"}

    def load(source, step):
        asked.append((source, step))
        return judge

    assert build_program(settings, ScriptedRetriever({}), 5, load).models == {"relevance": judge}
    assert asked == [("models/relevance", "relevance")]
    assert build_program(settings_model("rag")(name="rag"), ScriptedRetriever({}), 5).models == {}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["program.steps.relevence=x"], ["program.steps.relevence", "did you mean 'relevance'"]),
        (["program.steps.relevance="], ["program.steps.relevance"]),
        (["program.max_depth=-1"], ["program.max_depth", "greater than"]),
        (["program.max_calls=0"], ["program.max_calls", "greater than"]),
        (["program.reader=none"], ["program.reader", "'none'"]),
        (["program.relevance=every"], ["program.relevance", "'passage', 'sufficiency' or 'none'"]),
    ],
)
def test_a_mistake_in_the_config_is_one_line(words, says):
    with pytest.raises(UserError) as error:
        load_config(None, ["data=atlas", "program=ra_isf", *words])
    assert "\n" not in str(error.value)
    for part in says:
        assert part in str(error.value)


@pytest.mark.parametrize("adapter", ["json", "plain"])
def test_it_runs_on_the_embedded_model_without_a_parse_failure(adapter):
    words = ["data=atlas", "data.dev=2", "program=ra_isf", "program.max_depth=1", "program.max_subquestions=2"]
    words += ["retriever.k=2", "lm.default.max_tokens=48", f"lm.default.prompt_format={adapter}"]
    bench = Workbench(load_config(None, words))
    with bench.active():
        evaluation = evaluate(bench.program(), bench.data.split("dev"))
    assert evaluation.metrics["failures"] == evaluation.metrics["parse_failures"] == 0
    assert all(row.scores["lm_calls"] >= 2 and row.answer for row in evaluation.rows)
    outcome = ("by_self_knowledge", "by_relevance", "by_decomposition", "by_unknown")
    assert sum(evaluation.metrics[name] for name in outcome) == 1
    right = sum(evaluation.metrics[f"solved_{name}"] for name in outcome)
    assert right == pytest.approx(evaluation.metrics["em"])
