"""Searches over prompts: every optimizer of DSPy's, their budgets, and how they are taken up again."""

import asyncio
import hashlib
import json
import re
from dataclasses import dataclass, replace

import dspy
import pytest
from dspy import lm15
from dspy.utils.exceptions import ContextWindowExceededError, LMAuthError, LMInvalidRequestError
from scripted import Listener, ScriptedEngine, ScriptedRetriever, passage

from hoptimizer.common.errors import UserError
from hoptimizer.eval import Metric, exact_match
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.eval.objective import Objective
from hoptimizer.models.lm import build_lm
from hoptimizer.models.settings import LMSettings
from hoptimizer.models.usage import CallCache, UsageMeter
from hoptimizer.optimizers import CompileContext, Optimizer, better_together, build_optimizer, settings_model
from hoptimizer.optimizers.candidates import CandidateRecorder
from hoptimizer.optimizers.optimizer import Silent
from hoptimizer.optimizers.prompt.feedback import Feedback
from hoptimizer.optimizers.prompt.scoring import score
from hoptimizer.optimizers.prompt.search import Search, WorkEstimate
from hoptimizer.programs import RAG, IRCoT, IterRetGen, StepRecord
from hoptimizer.retrieval import Corpus
from hoptimizer.signatures import Read

GOLD, OTHER = passage("gold"), passage("other")
QUESTIONS = [
    Question(
        id=f"q{n}",
        question=f"Question {n}?",
        answers=[f"answer {n}"],
        passages=["gold"],
        hops=[Hop(question=f"Hop {n}?", answer=f"answer {n}", passage="gold")],
        rationale=f"It is answer {n}.",
    )
    for n in range(40)
]
TRAIN, DEV = QUESTIONS[:24], QUESTIONS[24:]

HALF = Objective.parse({"em": 0.5, "lm_calls": -0.1})

OPTIMIZERS = {
    "labeled_few_shot": {},
    "bootstrap_few_shot": {},
    "bootstrap_random_search": {"num_candidate_programs": 2},
    "bootstrap_optuna": {"num_candidate_programs": 4},
    "knn_few_shot": {},
    "copro": {"breadth": 3},
    "miprov2": {"num_candidates": 4, "num_trials": 5},
    "simba": {"bsize": 6, "num_candidates": 3, "max_steps": 2},
    "gepa": {"max_full_evals": 3},
    "infer_rules": {"num_candidates": 2},
    "better_together": {"strategy": ["bootstrap_few_shot", {"name": "copro", "breadth": 2, "depth": 1}]},
    "ensemble": {"of": "bootstrap_random_search"},
}


def drawn(text):
    return hashlib.sha256(text.encode()).digest()[0]


def model(delay=0.0):
    """Scripted: right on some questions, by the whole prompt, so that every candidate has another score."""

    def script(field, inputs, prompt):
        number = inputs.get("question", "").removeprefix("Question ").removesuffix("?")
        if field == "answer":
            return f"answer {number}" if drawn(prompt) < 110 else "unknown"
        words = f"words {drawn(prompt)}"
        return json.dumps({"reader": words}) if field == "module_advice" else words

    return ScriptedEngine(script, delay)


@pytest.fixture
def run(tmp_path):
    """Compile with an optimizer; the calls are kept in a folder."""

    def compiled(
        name,
        options=None,
        *,
        engine=None,
        workers=8,
        calls="calls",
        folder=tmp_path,
        progress=lambda *_: None,
        **context,
    ):
        engine = engine or model()
        lm = engine.lm(temperature=0.0, max_tokens=100)
        listener = Listener(progress)
        retriever = ScriptedRetriever({q.question: [GOLD, OTHER] for q in QUESTIONS})
        work = CompileContext(
            program=RAG(retriever, k=2),
            trainset=TRAIN,
            devset=DEV,
            corpus=Corpus([GOLD, OTHER]),
            objective=Objective.parse("em"),
            teacher_lm=None,
            reflection_lm=engine.lm("scripted/reflection", temperature=1.0, max_tokens=100),
            seed=7,
            workers=workers,
            folder=folder,
            listener=listener,
        )
        work = replace(work, **context)
        before, dspy.cache = dspy.cache, CallCache(folder / calls, None)
        try:
            with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
                settings = settings_model(name).model_validate({"name": name, **OPTIMIZERS[name], **(options or {})})
                optimizer = build_optimizer(settings)
                optimizer.check(work)
                program = optimizer.compile(work)
        finally:
            dspy.cache = before
        figures = {of: told for of, told, _ in listener.figures}
        told = {"candidates": listener.candidates, "settings": listener.settings, "figures": figures}
        return program, told, engine.calls

    return compiled


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_program_comes_out_whatever_the_concurrency(run, name):
    wide, told, _ = run(name, workers=16, calls="wide")
    narrow, others, _ = run(name, workers=2, calls="narrow")
    assert json.dumps(wide.dump_state(), default=str) == json.dumps(narrow.dump_state(), default=str)
    assert len(told["candidates"]) > 1 or name in (
        "labeled_few_shot",
        "bootstrap_few_shot",
        "knn_few_shot",
        "infer_rules",
    )
    state = wide.dump_state()
    assert any(candidate.state == state and candidate.is_whole for candidate in told["candidates"])
    scored = [(candidate.number, candidate.score, candidate.n) for candidate in told["candidates"]]
    assert scored == [(candidate.number, candidate.score, candidate.n) for candidate in others["candidates"]]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_search_goes_the_same_where_an_event_loop_runs_as_in_a_notebook(run, name):
    plain, _, _ = run(name, calls="plain")

    async def cell():
        return run(name, calls="cell")[0]

    assert json.dumps(asyncio.run(cell()).dump_state(), default=str) == json.dumps(plain.dump_state(), default=str)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compile_that_stopped_anywhere_is_replayed_from_its_own_calls(run, name, tmp_path):
    whole, _, calls = run(name)

    class Killed(BaseException):
        pass

    def until(limit):
        engine = model()
        plain = engine.answer

        def answer(request):
            if engine.calls >= limit:
                raise Killed
            return plain(request)

        engine.answer = answer
        return engine

    folder = tmp_path / "killed"
    with pytest.raises(Killed):
        run(name, engine=until(calls // 2), folder=folder)
    again, _, rest = run(name, folder=folder)
    assert json.dumps(again.dump_state(), default=str) == json.dumps(whole.dump_state(), default=str)
    assert rest <= calls - calls // 2 + 16, "what was answered is not asked again"


@pytest.mark.parametrize("name", ["bootstrap_random_search", "copro", "miprov2", "simba", "gepa"])
@pytest.mark.parametrize("workers", [2, 16])
def test_a_budget_ends_a_search_with_the_best_so_far(run, name, workers):
    program, told, calls = run(name, {"budget": {"lm_calls": 100}}, workers=workers, calls=f"{workers}")
    assert told["figures"]["spent"]["calls"] <= 100
    assert calls <= 100 + workers, "the same call, asked by several at once, counts once"
    best = max((c for c in told["candidates"] if c.is_whole), key=lambda candidate: candidate.score)
    assert len(told["candidates"]) > 1
    assert program.dump_state()["reader"]["demos"] == best.state["reader"]["demos"]
    assert program.dump_state()["reader"]["signature"] == best.state["reader"]["signature"]


def test_a_budget_that_ended_a_search_is_told_with_what_is_kept(run, caplog):
    engine = ScriptedEngine(_right_as_it_is)
    program, _, _ = run("infer_rules", {"budget": {"lm_calls": 40}}, engine=engine)
    assert program.dump_state() == RAG(ScriptedRetriever({}), k=2).dump_state()
    said = "40 calls ended the search; candidates that were scored on dev: 1; kept is what it started from"
    assert said in caplog.text


def test_an_estimate_has_the_judges_calls(run):
    engine = ScriptedEngine(lambda field, inputs, prompt: "True" if field == "correct" else "unknown")
    judged = replace(Objective.parse("accuracy"), judge=engine.lm("scripted/judge"))
    _, told, _ = run("bootstrap_random_search", engine=engine, objective=judged)
    estimate, spent = told["figures"]["estimate"], told["figures"]["spent"]
    assert estimate["calls"] >= 0.9 * spent["calls"]


def test_simba_under_a_budget_ends_with_a_better_program_than_it_began_with(run):
    program, told, _ = run("simba", {"budget": {"lm_calls": 140}}, seed=5)
    base, best = told["candidates"][0], max(c.score for c in told["candidates"] if c.is_whole)
    assert best > base.score
    assert program.dump_state() != base.state


@pytest.mark.parametrize("name", ["bootstrap_optuna", "infer_rules", "simba"])
def test_what_a_search_starts_from_is_a_candidate(run, name):
    engine = ScriptedEngine(_right_as_it_is)
    program, told, _ = run(name, engine=engine)
    start = RAG(ScriptedRetriever({}), k=2).dump_state()
    [first] = [candidate for candidate in told["candidates"] if candidate.state == start and candidate.is_whole]
    assert first.score == 1
    assert len(told["candidates"]) > 1
    assert program.dump_state() == start


@dataclass(frozen=True, kw_only=True)
class Forgetful(Search):
    """Scores a good program, and gives a bad one."""

    def work(self, context):
        return WorkEstimate(runs=len(context.devset))

    def search(self, context):
        good, bad = (context.program.deepcopy() for _ in range(2))
        good.reader.signature = good.reader.signature.with_instructions("Be right.")
        bad.reader.signature = bad.reader.signature.with_instructions("Be quick.")
        score(context, good)
        return bad


def test_the_best_of_all_that_were_scored_is_kept(run, monkeypatch):
    monkeypatch.setitem(globals(), "build_optimizer", lambda _: Forgetful())
    gold = {question.question: question.answers[0] for question in QUESTIONS}
    engine = ScriptedEngine(lambda field, inputs, prompt: gold[inputs["question"]] if "Be right." in prompt else "?")
    program, told, _ = run("copro", engine=engine)
    assert program.reader.signature.instructions == "Be right."
    assert [candidate.score for candidate in told["candidates"]] == [0, 1, 0]


def _right_as_it_is(field, inputs, prompt):
    """Scripted: rules do harm, and so do demonstrations on the questions of dev."""
    if field != "answer":
        return json.dumps({"reader": f"a rule {drawn(prompt)}"}) if field == "module_advice" else "a rule"
    number = int(inputs["question"].removeprefix("Question ").removesuffix("?"))
    harmed = "a rule" in prompt or (prompt.count("Question ") > 1 and number >= len(TRAIN))
    return "unknown" if harmed or drawn(prompt) < 20 * (number < len(TRAIN)) else f"answer {number}"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_simbas_program_is_chosen_on_dev(run, seed):
    program, told, _ = run("simba", seed=seed)
    whole = [candidate for candidate in told["candidates"] if candidate.is_whole]
    kept = json.dumps(program.dump_state(), default=str)
    [chosen] = [candidate for candidate in whole if json.dumps(candidate.state, default=str) == kept]
    assert chosen.score == max(candidate.score for candidate in whole)


def test_a_question_that_fails_does_not_hide_simbas_candidates(run):
    engine = model()
    plain = engine.answer

    def answer(request):
        if "5?" in request.messages[-1].text:
            raise LMInvalidRequestError("the prompt was refused")
        return plain(request)

    engine.answer = answer
    _, told, _ = run("simba", engine=engine)
    assert any(candidate.failures for candidate in told["candidates"])


class Refusing(ScriptedRetriever):
    """Refuses some of the queries that programs write, as an engine does for their length."""

    refused = 0

    def search(self, queries, k):
        if any(query not in self.script and drawn(query) < 128 for query in queries):
            self.refused += len(queries) == 1
            raise UserError("the query is too long")
        return super().search(queries, k)


@pytest.mark.parametrize("name", ["bootstrap_few_shot", "knn_few_shot", "miprov2"])
def test_a_query_that_is_refused_ends_no_compile(run, name):
    refusing = Refusing({q.question: [GOLD, OTHER] for q in QUESTIONS})
    program, told, _ = run(name, program=IterRetGen(refusing, k=2, rounds=2))
    assert refusing.refused
    assert isinstance(program, IterRetGen)
    assert all(candidate.failures for candidate in told["candidates"])


def test_minutes_that_were_spent_do_not_end_a_replay(run):
    budget = {"budget": {"minutes": 0.03}}
    first, told, _ = run("copro", budget, engine=model(delay=0.05))
    again, replayed, calls = run("copro", budget, engine=model(delay=0.05))
    assert len(told["candidates"]) > 1
    assert [c.score for c in replayed["candidates"]] == [c.score for c in told["candidates"]]
    assert again.dump_state() == first.dump_state()
    assert calls == 0


def test_a_budget_is_in_minutes_too(run):
    # Calls that take much longer than what is done between them, also on a machine that has other work.
    _, told, _ = run("copro", {"budget": {"minutes": 0.08}}, engine=model(delay=0.2))
    assert told["candidates"]
    assert told["figures"]["spent"]["seconds"] < 20
    assert told["figures"]["estimate"]["calls"] > told["figures"]["spent"]["calls"]


@pytest.mark.parametrize(
    ("name", "options", "context", "message"),
    [
        ("copro", {"budget": {"lm_calls": 5}}, {}, "5 calls do not finish one candidate"),
        ("gepa", {}, {"reflection_lm": None}, "no language model reflects; name one"),
        ("simba", {"bsize": 25}, {}, "25 of 24 train questions; take fewer"),
        ("miprov2", {"minibatch_size": 17}, {}, "17 of 16 dev questions; take fewer"),
        ("ensemble", {"of": "distill"}, {}, "makes one program, and no candidates"),
        ("ensemble", {"of": "labeled_few_shot"}, {}, "makes one program, and no candidates"),
        ("bootstrap_few_shot", {"metric_threshold": 0.9}, {"objective": HALF}, "is at most 0.5; lower it"),
        ("knn_few_shot", {"metric_threshold": 0.9}, {"objective": HALF}, "is at most 0.5; lower it"),
        ("gepa", {"reflection_minibatch_size": 25}, {}, "25 of 24 train questions; take fewer"),
        ("better_together", {"strategy": [{"name": "ensemble", "of": "copro"}, "copro"]}, {}, "put it last"),
    ],
)
def test_what_can_not_be_done_is_said_before_anything_is_spent(run, name, options, context, message):
    engine = model()
    with pytest.raises(UserError, match=message):
        run(name, options, engine=engine, **context)
    assert engine.calls == 0


@pytest.mark.parametrize(("name", "calls"), [("copro", 16), ("bootstrap_few_shot", 20)])
def test_a_budget_that_ends_before_a_candidate_is_scored_is_refused(run, name, calls):
    program = IRCoT(ScriptedRetriever({q.question: [GOLD, OTHER] for q in QUESTIONS}), k=2)
    with pytest.raises(UserError, match=f"{calls} calls do not finish one candidate"):
        run(name, {"budget": {"lm_calls": calls}}, program=program)


def test_a_price_that_nobody_knows_is_no_budget(run, caplog):
    with pytest.raises(UserError, match="no price is known for scripted/model"):
        run("copro", {"budget": {"usd": 2}}, reflection_lm=None)
    _, told, _ = run("copro", {"budget": {"usd": 2}})  # the model that proposes may have one
    assert "usd" not in told["figures"]["spent"]
    assert "no price is known for scripted/model, so that the others' calls alone count" in caplog.text


def test_a_budget_in_minutes_that_ends_before_a_candidate_says_so_in_minutes(run):
    with pytest.raises(UserError, match=r"do not finish one candidate, which takes about [\d.]+ minutes"):
        run("copro", {"budget": {"minutes": 0.05}}, engine=model(2.0))


PROPOSED = re.compile(r"words \d")


def failing(engine, error, where):
    """A server that raises where the messages are so."""
    plain = engine.answer

    def answer(request):
        if where(request):
            raise error
        return plain(request)

    engine.answer = answer
    return engine


@pytest.mark.parametrize("name", ["copro", "gepa"])
def test_a_candidate_that_fails_is_not_better_than_one_that_costs(run, name):
    base = failing(model(), LMInvalidRequestError("refused"), lambda request: PROPOSED.search(f"{request.system}"))
    dear = Objective.parse({"em": 1, "lm_calls": -0.9})
    program, told, _ = run(name, engine=base, objective=dear)
    failed = [candidate for candidate in told["candidates"] if candidate.failures]
    assert failed
    assert all(candidate.score < 0 for candidate in failed)
    assert not PROPOSED.search(program.reader.signature.instructions)


@pytest.mark.parametrize("name", ["copro", "infer_rules", "miprov2"])
@pytest.mark.parametrize("error", [LMInvalidRequestError("refused"), ContextWindowExceededError(message="too long")])
def test_a_model_that_fails_to_propose_is_one_line(run, name, error):
    engine = failing(model(), error, lambda request: request.model == "scripted/reflection")
    with pytest.raises(UserError, match="the language model that proposes failed: ") as raised:
        run(name, engine=engine)
    assert "\n" not in str(raised.value)


def test_rules_that_can_not_be_parsed_are_one_line(run):
    engine = model()
    plain = engine.answer

    def answer(request):
        said = plain(request)
        mute = replace(said, message=lm15.Message.assistant("no"))
        return mute if request.model == "scripted/reflection" else said

    engine.answer = answer
    with pytest.raises(UserError, match="a proposal can't be parsed"):
        run("infer_rules", engine=engine)


def test_candidates_on_other_models_are_not_taken_for_ones_own():
    program = RAG(ScriptedRetriever({}), k=2)
    other = program.deepcopy()
    other.models["reader"] = lambda inputs: inputs
    recorder = CandidateRecorder(UsageMeter(lambda _: False), ["q"], 0.0, Silent())
    recorder.add(program.dump_state(), {"q": 0.0})
    recorder.add(other.dump_state(), {"q": 1.0})
    assert recorder.best.state == other.dump_state()
    assert recorder.restored(program).dump_state() == program.dump_state()
    assert [candidate.number for candidate in recorder.alike(other)] == [1]


class _Training(Optimizer):
    def compile(self, context):
        trained = context.program.deepcopy()
        trained.reader.signature = trained.reader.signature.with_instructions("Trained.")
        return trained


def test_what_a_training_made_is_not_kept_without_a_word_where_the_budget_ends(run, monkeypatch):
    monkeypatch.setattr(better_together, "built", lambda options: _Training())
    said = []
    options = {"strategy": ["bootstrap_finetune"], "budget": {"lm_calls": 20}}
    # One at a time: the end of the budget does not wait for calls that are under way.
    program, _, calls = run("better_together", options, workers=1, progress=lambda stage, *_: said.append(stage))
    assert calls == 20
    assert program.reader.signature.instructions != "Trained."
    assert "the budget ended before what bootstrap_finetune made was scored: it is not kept" in said


def test_what_a_question_lacks_counts_0_wherever_candidates_are_scored(run):
    half = [question.model_copy(update={"passages": []}) if n % 2 else question for n, question in enumerate(DEV)]
    _, told, _ = run("infer_rules", {"budget": {"lm_calls": 1000}}, objective=Objective.parse("recall"), devset=half)
    assert len(told["candidates"]) > 1
    assert {candidate.score for candidate in told["candidates"]} == {0.5}


def test_a_metric_of_the_users_that_raises_is_counted(run):
    def broken(example, prediction):
        if example.id in ("q3", "q30"):
            raise ZeroDivisionError("no words")
        return exact_match(prediction.answer, example.answers)

    metric = Objective((("broken", 1.0),), (Metric("broken", "raises", broken),))
    _, told, _ = run("bootstrap_random_search", objective=metric)
    assert told["candidates"]
    assert set(metric.metric_failures) == {"broken: ZeroDivisionError: no words"}


def test_demonstrations_that_there_are_none_of_are_one_line(run):
    engine = ScriptedEngine(lambda field, inputs, prompt: "unknown")
    with pytest.raises(UserError, match="no run of the teacher that scored so well shows the step 'reader'"):
        run("bootstrap_optuna", {"max_labeled_demos": 0}, engine=engine)


def test_prompt_formats_are_tried_with_the_demonstrations(run):
    class Local:
        lm = staticmethod(lambda *_, **options: build_lm(LMSettings(model="local/smollm2-135m-instruct", **options)))
        calls = 0

    few = {"engine": Local, "trainset": TRAIN[:6], "devset": DEV[:3]}
    program, told, _ = run("labeled_few_shot", {"k": 2}, **few)
    states = [candidate.state for candidate in told["candidates"]]
    assert [state["program"]["prompt_format"] for state in states] == ["json", "plain"]
    assert [len(state["reader"]["demos"]) for state in states] == [2, 2]
    other, own = told["candidates"]
    assert program.dump_state() == (other if other.is_above(own) else own).state


def test_the_estimate_is_near_what_is_spent(run):
    _, told, _ = run("bootstrap_random_search")
    estimate, spent = told["figures"]["estimate"], told["figures"]["spent"]
    assert spent["calls"] / 2 <= estimate["calls"] <= spent["calls"] * 2


@pytest.mark.parametrize("threshold", [0, 0.4])
def test_no_run_that_costs_more_than_it_is_worth_is_demonstrated(run, threshold):
    options = {"metric_threshold": threshold, "max_labeled_demos": 0}
    program, _, _ = run("bootstrap_few_shot", options, objective=HALF)
    shown = [demo["answer"] for demo in program.reader.demos if "augmented" in demo]
    assert len(shown) == 4
    assert "unknown" not in shown


def test_gepa_reflects_on_what_is_not_as_good_as_can_be(run):
    _, told, _ = run("gepa", objective=Objective.parse({"em": 1.0, "recall": 1.0}))
    assert told["settings"]["GEPA.perfect_score"] == 2


def test_what_the_reflecting_model_of_gepa_thinks_is_no_instruction(run):
    class Thinking(ScriptedEngine):
        def answer(self, request):
            said = super().answer(request)
            thoughts = "<think>I could ask for {words}.</think>"
            return replace(said, message=lm15.Message.assistant(thoughts + said.message.text))

    thinking = Thinking(model().script)
    _, told, _ = run("gepa", reflection_lm=thinking.lm("scripted/thinking", temperature=1.0, max_tokens=100))
    instructions = [candidate.state["reader"]["signature"]["instructions"] for candidate in told["candidates"]]
    assert len({*instructions}) > 1
    assert not any("think>" in text for text in instructions)


def test_gepa_is_given_the_terms_of_a_weighted_sum(run, monkeypatch):
    fronts = []
    plain = dspy.GEPA.__init__

    def told(self, **options):
        fronts.append(options["gepa_kwargs"])
        plain(self, **options)

    monkeypatch.setattr(dspy.GEPA, "__init__", told)
    program, found, _ = run("gepa", objective=HALF)
    assert fronts == [{"frontier_type": "hybrid"}]
    state = program.dump_state()
    assert any(candidate.state == state and candidate.is_whole for candidate in found["candidates"])
    prediction = dspy.Prediction(answer="answer 3", passages=[], steps=[StepRecord("reader", "lm", {}, {}, calls=2)])
    scored = Feedback(HALF, Corpus([GOLD]))(QUESTIONS[3].to_dspy(), prediction)
    assert scored.objective_scores == {"em": 0.5, "lm_calls": -0.2}
    assert scored.score == pytest.approx(0.3)


def test_settings_of_the_optimizer_are_told(run):
    _, told, _ = run("miprov2")
    assert told["settings"]["MIPROv2.seed"] == 7
    assert told["settings"]["MIPROv2.num_trials"] == 5


def test_a_server_that_refuses_ends_the_search_with_one_line(run):
    engine = model()
    plain = engine.answer

    def answer(request):
        if engine.calls >= 30:
            raise LMAuthError("the key was revoked")
        return plain(request)

    engine.answer = answer
    with pytest.raises(UserError, match="LMAuthError: the key was revoked; check the lm section"):
        run("copro", engine=engine)


def test_rules_do_not_get_into_the_signatures_that_programs_share(run):
    before = Read.instructions
    program, told, _ = run("infer_rules")
    assert Read.instructions == before
    best = max(told["candidates"], key=lambda candidate: candidate.score)
    assert program.reader.signature.instructions == best.state["reader"]["signature"]["instructions"]
    assert "rules" in program.reader.signature.instructions


def test_demonstrations_of_the_nearest_questions_depend_on_the_question(run):
    program, _, _ = run("knn_few_shot", {"k": 2})
    shown = [program.neighbours("reader", f"Question {n}?") for n in (1, 20)]
    assert all(len(demos) == 2 for demos in shown)
    assert shown[0] != shown[1]
    assert not any(demo["question"] == "Question 1?" for demo in shown[0]), "never its own answer"
    state = json.loads(json.dumps(program.dump_state(), default=str))
    loaded = RAG(program.retriever, k=2)
    loaded.load_state(state)
    assert loaded.neighbours("reader", "Question 1?") == shown[0]


def test_later_demonstrations_go_before_those_of_the_nearest_questions(run):
    _, told, _ = run("better_together", {"strategy": ["knn_few_shot", "bootstrap_few_shot"]})
    scores = [candidate.score for candidate in told["candidates"]]
    assert len(set(scores)) == 3


def test_members_of_an_ensemble_vote(run):
    program, told, _ = run("ensemble", {"size": 3})
    assert len(program.members) == 3
    states = [candidate.state for candidate in told["candidates"]]
    assert all(member.dump_state() in states for member in program.members)


class _Distilling(Optimizer):
    def compile(self, context):
        async def says(inputs):
            return {"answer": inputs["question"].lower().replace("question", "answer").rstrip("?")}

        trained = context.program.deepcopy()
        trained.models["reader"] = says
        return trained


def test_the_members_of_an_ensemble_keep_the_models_that_were_trained_for_them(run, monkeypatch):
    options = {"of": {"name": "better_together", "strategy": ["distill", "bootstrap_random_search"]}}
    kinds = {"distill": _Distilling}
    real = better_together.built
    monkeypatch.setattr(
        better_together, "built", lambda options: kinds[options.name]() if options.name in kinds else real(options)
    )
    program, _, _ = run("ensemble", options)
    assert [list(member.models) for member in program.members] == [["reader"]] * len(program.members)


@pytest.mark.parametrize("name", ["bootstrap_few_shot", "knn_few_shot"])
def test_a_teacher_that_can_not_be_parsed_is_said_after_a_wave(run, name):
    engine = ScriptedEngine(lambda field, inputs, prompt: "")
    engine.answer = lambda request, plain=engine.answer: replace(
        plain(request), message=dspy.lm15.Message.assistant("no fields at all")
    )
    with pytest.raises(UserError, match="scripted/teacher can't keep to the format: in 16 runs no output"):
        run(name, teacher_lm=engine.lm("scripted/teacher", temperature=0.0))


def test_gepa_is_told_which_search_brought_what_the_chain_read():
    question = Question(id="q", question="Who?", answers=["a"], passages=["gold", "other"])
    third = passage("third")

    def thought(*context):
        return StepRecord("reason", "lm", {"context": [*context]}, {"next_thought": "It is so."}, calls=1)

    def search(query, *found):
        return StepRecord("retrieve", "retrieval", {"query": query}, {"passages": [*found]})

    feedback = Feedback(Objective.parse("em"), Corpus([GOLD, OTHER, third]))
    # IRCoT searches for more than it takes in at first: the second search brought the other one.
    steps = [search("Who?", "gold", "other"), thought("gold"), search("It.", "other"), thought("gold", "other")]
    steps += [search("What?", "third"), thought("gold", "other", "third")]
    told = feedback(question.to_dspy(), dspy.Prediction(answer="b", steps=steps), None, "reason", None).feedback
    assert "Search 1, for 'Who?', found 'Gold'." in told
    assert "Search 2, for 'It.', found 'Other'." in told
    assert "Search 3, for 'What?', came when all supporting passages had been found." in told
    steps = [search("Who?", "gold", "other"), thought("gold"), StepRecord("reader", "lm", {"context": ["gold"]}, {})]
    told = feedback(question.to_dspy(), dspy.Prediction(answer="b", steps=steps), None, "reason", None).feedback
    assert "'Other' came from these searches, too, but after the chain had ended." in told


def test_gepa_is_told_where_a_run_went_wrong():
    objective, corpus = Objective.parse("em"), Corpus([GOLD, OTHER])
    steps = [
        StepRecord("retrieve", "retrieval", {"query": "Question 1?"}, {"passages": ["other"]}),
        StepRecord("reason", "lm", {}, {"thought": "Nothing is known."}, calls=1),
        StepRecord("follow_up", "lm", {"facts": "Nothing."}, {"look_up": "", "enough": "yes"}, calls=1),
        StepRecord("follow_up", "lm", {"facts": "answer 1"}, {"look_up": "Who?", "enough": "no"}, calls=1),
        StepRecord("relevance", "lm", {"question": "Question 1?", "passage": "other"}, {"relevant": "yes"}, calls=1),
        StepRecord("reader", "lm", {"context": ["other"]}, {"answer": "wrong"}, calls=1),
    ]
    prediction = dspy.Prediction(answer="wrong", passages=[OTHER], steps=steps)
    feedback = Feedback(objective, corpus)
    example = QUESTIONS[1].to_dspy()
    assert feedback(example, prediction) == 0.0
    told = {record.step: feedback(example, prediction, None, record.step, None) for record in steps[1:]}
    assert all(one.score == 0.0 for one in told.values())
    assert all("No search found 'Gold', which says: Hop 1? answer 1" in one.feedback for one in told.values())
    assert "leaves the right chain at hop 1 of 1: Hop 1? answer 1" in told["reason"].feedback
    assert "After thought 1 it was said: the answer follows. To look up was: Hop 1?" in told["follow_up"].feedback
    assert "thought 2 it was said: 'Who?' must be looked up. But the answer follows." in told["follow_up"].feedback
    assert "'Other' was judged relevant for 'Question 1?', and does not hold the answer" in told["relevance"].feedback
    assert "The reader saw 1 passages, among them 0 of the 1 that support the answer: none." in told["reader"].feedback
