"""The runner and the training examples, on a scripted language model."""

import dspy
import pytest
from dspy.utils import DummyLM
from dspy.utils.exceptions import ContextWindowExceededError, LMTransportError
from scripted import ScriptedRetriever, passage

from hoptimizer.common.errors import UserError
from hoptimizer.eval import Hop, Metric, Question
from hoptimizer.eval.objective import Objective
from hoptimizer.eval.runner import evaluate
from hoptimizer.optimizers.labels.demonstrations import annotate
from hoptimizer.programs import RAG, Direct
from hoptimizer.retrieval import Corpus

QUESTIONS = [
    Question(id="1", question="Who directed Kane?", answers=["Orson Welles", "Welles"], passages=["kane"]),
    Question(id="2", question="Where was Welles born?", answers=["Kenosha"]),
]


def answering(script, raises=None):
    class Scripted(DummyLM):
        async def acall(self, *args, **kwargs):
            if raises:
                raise raises
            return await super().acall(*args, **kwargs)

    return dspy.context(lm=Scripted(script), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False))


def test_scores_are_kept_by_question_and_in_order():
    retriever = ScriptedRetriever({QUESTIONS[0].question: [passage("kane"), passage("other")]})
    script = {"Who directed Kane?": {"answer": "Welles"}, "Where was Welles born?": {"answer": "in Kenosha"}}
    seen = []

    def progress(done, total, scores):
        seen.append((done, total))

    with answering(script):
        evaluation = evaluate(RAG(retriever), QUESTIONS, progress=progress)
    assert [row.answer for row in evaluation.rows] == ["Welles", "in Kenosha"]
    assert evaluation.scores("em") == [1.0, 0.0]
    assert evaluation.metrics["f1"] == pytest.approx((1 + 2 / 3) / 2)
    assert evaluation.metrics["recall"] == 1.0
    assert evaluation.metrics["lm_calls"] == 1.0
    assert seen == [(1, 2), (2, 2)]


def test_a_question_that_the_model_refuses_is_counted_and_scores_nothing():
    with answering([], raises=ContextWindowExceededError(message="too long")):
        evaluation = evaluate(Direct(), QUESTIONS)
    assert (evaluation.metrics["failures"], evaluation.metrics["unanswered"]) == (2, 0)
    assert evaluation.metrics["f1"] == 0.0
    assert "too long" in evaluation.rows[0].failure


def test_what_a_question_found_before_it_failed_is_not_nothing():
    retriever = ScriptedRetriever({QUESTIONS[0].question: [passage("kane"), passage("other")]})
    with answering([], raises=ContextWindowExceededError(message="too long")):
        assert "passages" not in evaluate(RAG(retriever), QUESTIONS).metrics


def test_no_answer_is_not_the_right_one_where_that_is_empty_after_normalisation():
    article = Question(id="1", question="Which article?", answers=["The"])
    with answering({"Which article?": {"answer": "the"}}):
        assert evaluate(Direct(), [article]).scores("em") == [1.0]
    with answering([], raises=ContextWindowExceededError(message="too long")):
        failed = evaluate(Direct(), [article])
    assert [failed.scores(name) for name in ("em", "f1", "contains", "efficient_rag_em")] == [[0.0]] * 4


def test_a_metric_of_the_users_that_raises_is_counted_and_takes_no_other_score_away():
    def broken(question, prediction):
        if question.question == QUESTIONS[0].question:
            raise ZeroDivisionError("no words")
        return 0.25

    objective = Objective((("broken", 1.0),), (Metric("broken", "raises", broken),))
    with answering({question.question: {"answer": "Welles"} for question in QUESTIONS}):
        evaluation = evaluate(Direct(), QUESTIONS, objective=objective)
    assert evaluation.rows[0].failure == "a metric failed: broken: ZeroDivisionError: no words"
    assert evaluation.metrics["failures"] == 1
    # As on a wrong answer, for the optimizer, too; what else is known of the question stays.
    assert evaluation.rows[0].scores["broken"] == 0
    assert evaluation.metrics["broken"] == pytest.approx(0.25 * (len(QUESTIONS) - 1) / len(QUESTIONS))
    assert len(evaluation.scores("f1")) == len(evaluation.scores("lm_calls")) == len(QUESTIONS)


def test_a_model_that_cannot_be_reached_stops_the_run_with_one_line():
    with answering([], raises=LMTransportError(message="connection\nrefused")), pytest.raises(UserError) as error:
        evaluate(Direct(), QUESTIONS)
    assert "connection refused" in str(error.value)


def test_training_examples_carry_every_step_field_of_an_annotated_question():
    corpus = Corpus([passage("kane"), passage("welles"), passage("other")])
    question = Question(
        id="3",
        question="Where was the director of Kane born?",
        answers=["Kenosha"],
        passages=["kane", "welles"],
        hops=[
            Hop(question="Who directed Kane?", answer="Welles", passage="kane"),
            Hop(question="Where was Welles born?", answer="Kenosha", passage="welles"),
        ],
        rationale="Welles directed Kane. Welles was born in Kenosha. So the answer is: Kenosha.",
    )
    retriever = ScriptedRetriever({question.question: [passage("kane"), passage("other"), passage("spare")]})
    [example] = annotate([question], corpus, retriever, distractors=1, seed=0)
    assert example.inputs().toDict() == {"question": question.question}
    assert sorted(example.context) == sorted(str(p) for p in corpus)
    assert example.chain == "Who directed Kane: Welles. Where was Welles born: Kenosha. So the answer is: Kenosha."
    assert f"{example.thoughts} {example.thought}".strip() in example.chain
    assert example.answer == "Kenosha"
    assert (example.passage in [str(passage("kane")), str(passage("welles"))]) == (example.relevant == "yes")
    assert example.ordered_subquestions == ["Who directed Kane?", "Where was #1 born?"]
    assert example.findings == ["Who directed Kane? Welles", "Where was Welles born? Kenosha"]
    judged = {annotate([question], corpus, retriever, distractors=1, seed=seed)[0].relevant for seed in range(9)}
    assert judged == {"yes", "no"}
    assert annotate([question], corpus, retriever, distractors=1, seed=0) == [example]


def test_programs_that_do_not_retrieve_get_demonstrations_without_context():
    [example] = annotate(QUESTIONS[:1], Corpus([passage("kane")]), None, distractors=1, seed=0)
    assert "context" not in example
