"""Training examples from a data set's annotations, with a value for every field of a step's demonstration."""

import contextlib
import random
from collections.abc import Sequence

import dspy

from hoptimizer.eval.datasets.question import Question
from hoptimizer.optimizers import searches
from hoptimizer.optimizers.labels.annotations import holding, supporting
from hoptimizer.optimizers.labels.critique import supports, usefulness, wrong_answers
from hoptimizer.optimizers.labels.decomposition import (
    answered,
    findings,
    later_query,
    next_question,
    ordered_subquestions,
    subquestions,
    task,
    task_question,
)
from hoptimizer.optimizers.labels.pages import page_of, page_titles
from hoptimizer.optimizers.labels.reasoning import enough, facts, final_answer, is_reasoned, look_up, reasoning
from hoptimizer.retrieval import Corpus, Passage, Retriever

# The number of search results that distractors are taken from.
_DEPTH = 20


def annotate(
    questions: Sequence[Question], corpus: Corpus, retriever: Retriever | None, *, distractors: int, seed: int
) -> list[dspy.Example]:
    """Make DSPy training examples that carry a value for each field of the programs' signatures.

    DSPy's optimizers take a demonstration's fields from its example by name. An annotated question has them all:

    - ``context``: its supporting passages, mixed with distractors (IRCoT, section 4.2: M of 1 to 3 among a
      demonstration's paragraphs);
    - ``chain``: its annotated reasoning, and ``reasoning``: the same without the sentence that states the answer;
    - ``thought``: one sentence of its reasoning, and ``thoughts``: the sentences before that one;
    - ``next_thought``: one fact of its reasoning, ``known``: the facts before that one, and ``facts``: these with it;
      ``look_up``, ``enough`` and ``final_answer``: what is missing then, whether the answer is known, and the answer;
    - ``passage``: a passage that is ``relevant`` or not; ``retrieved``: several, which are ``sufficient`` or not
      (RA-ISF);
    - ``ordered_subquestions``: its hops; ``subquestions``: the same, where no hop refers to another; ``findings``: its
      hops with their answers (RA-ISF, least-to-most);
    - ``answered``: the first of its hops with their answers, maybe none and maybe all of them, and ``next_question``:
      which one is to be asked then, if any (self-ask);
      ``task_question`` and ``task``: the same with what handles it (decomposed prompting);
    - ``first_query``: its first hop; ``found``: the passages of some of its hops, but the last, with one distractor,
      and ``search_query``: the next hop (demonstrate-search-predict);
    - ``recited``: its supporting passages (recitation);
    - ``candidate``: an answer, right or wrong, which is ``useful`` or not, and ``supported`` by the ``passage`` or not
      (Self-RAG);
    - ``page``: the passage that it is asked about, ``titles``: those of the other pages that support it, and
      ``number``: how many these are (IRCoT, appendix B).

    What a model knows by itself is not annotated: :class:`~hoptimizer.optimizers.tuning.distill.Distill` asks it.

    Args:
        questions: questions of the train split.
        corpus: the corpus with their supporting passages.
        retriever: finds the distractors, so that they resemble what a program retrieves; ``None`` for programs that
            do not retrieve, whose demonstrations have no context but the page that their question is asked about.
        distractors: the number of passages per question that do not support its answer.
        seed: determines the order of the passages, the sentence that is the ``thought``, the fact that is followed up,
            and the passage to judge.
    """
    found: list[list[Passage]] = [[] for _ in questions]
    if retriever is not None:
        found = searches.found(retriever, [question.question for question in questions], _DEPTH)
    rng, following, judging, sufficing, asking, searching, judged = (random.Random(seed) for _ in range(7))
    examples = []
    for question, results, other in zip(questions, found, [*questions[1:], *questions[:1]], strict=True):
        example = _example(question, corpus, results, distractors, rng)
        example = _followed_up(example, question, following)
        example = _judged(example, question, corpus, results, judging)
        example = _judged_together(example, question, corpus, results, distractors, sufficing)
        example = _asked(example, question, asking)
        example = _searched(example, question, corpus, results, searching)
        example = _criticized(example, question, other, corpus, judged)
        examples.append(_decomposed(example, question))
    return examples


def _example(
    question: Question, corpus: Corpus, found: list[Passage], distractors: int, rng: random.Random
) -> dspy.Example:
    example = question.to_dspy()
    gold = [corpus[id] for id in supporting(question)]
    shown = gold + _others(question, found)[:distractors]
    rng.shuffle(shown)
    if gold and found:
        example = example.copy(context=[str(passage) for passage in shown])
    elif page := page_of(question, corpus):
        example = example.copy(context=[str(page)])
    if titles := page_titles(question, corpus):
        example = example.copy(page=str(page_of(question, corpus)), number=len(titles), titles=titles)
    if is_reasoned(question):
        example = example.copy(**_thinking(question, rng))
    return example.with_inputs(*question.asked)


def _thinking(question: Question, rng: random.Random) -> dict[str, str]:
    """The fields of steps that reason to the answer."""
    sentences = reasoning(question)
    place = rng.randrange(len(sentences))
    return {
        "chain": " ".join(sentences),
        "reasoning": " ".join(facts(question)),
        "thoughts": " ".join(sentences[:place]),
        "thought": sentences[place],
    }


def _followed_up(example: dspy.Example, question: Question, rng: random.Random) -> dspy.Example:
    """The example with a fact to follow up; the sentence that states the answer is none."""
    stated = facts(question)
    if not stated:
        return example
    place = rng.randrange(len(stated))
    example = example.copy(known=" ".join(stated[:place]), next_thought=stated[place])
    with contextlib.suppress(LookupError):  # then what follows is left out
        return example.copy(
            facts=" ".join(stated[: place + 1]),
            look_up=look_up(question, place),
            enough=enough(question, place),
            final_answer=final_answer(question, place),
        )
    return example


def _judged(
    example: dspy.Example, question: Question, corpus: Corpus, found: list[Passage], rng: random.Random
) -> dspy.Example:
    """The example with a passage to judge.

    With equal chances it holds the answer or does not, unless no passage does by itself. One that does not is the first
    found that does not support the answer, or a supporting one that another one is needed for.
    """
    relevant = holding(question, corpus)
    others = [corpus[id] for id in supporting(question) if id not in relevant] + _others(question, found)[:1]
    if not supporting(question) or not others:
        return example
    if relevant and rng.random() < 0.5:
        return example.copy(passage=str(corpus[rng.choice(relevant)]), relevant="yes")
    return example.copy(passage=str(rng.choice(others)), relevant="no")


def _judged_together(
    example: dspy.Example,
    question: Question,
    corpus: Corpus,
    found: list[Passage],
    distractors: int,
    rng: random.Random,
) -> dspy.Example:
    """The example with passages to judge together: all supporting ones or, with equal chances, all but one.

    Another passage stands in the place of the one that is missing, so that their number tells nothing.
    """
    gold, others = [corpus[id] for id in supporting(question)], _others(question, found)
    if not gold or not others:
        return example
    sufficient = rng.random() < 0.5
    if not sufficient:
        gold.remove(rng.choice(gold))
    shown = gold + others[: distractors + (not sufficient)]
    rng.shuffle(shown)
    return example.copy(retrieved=[str(passage) for passage in shown], sufficient="yes" if sufficient else "no")


def _asked(example: dspy.Example, question: Question, rng: random.Random) -> dspy.Example:
    """The example with the hop that is to be asked after some of them, where there are hops."""
    if not question.hops:
        return example
    place = rng.randrange(len(question.hops) + 1)
    return example.copy(
        answered=answered(question, place),
        next_question=next_question(question, place),
        task_question=task_question(question, place),
        task=task(question, place),
    )


def _searched(
    example: dspy.Example, question: Question, corpus: Corpus, found: list[Passage], rng: random.Random
) -> dspy.Example:
    """The example with a query for its first hop, and one for a later hop after the passages of those before it."""
    if question.hops:
        example = example.copy(first_query=next_question(question, 0))
    if supporting(question):
        example = example.copy(recited=[str(corpus[id]) for id in supporting(question)])
    if len(question.hops) < 2 or not all(hop.passage for hop in question.hops):
        return example
    place = rng.randrange(len(question.hops) - 1)
    ids = dict.fromkeys(hop.passage for hop in question.hops[: place + 1] if hop.passage)
    shown = [*(corpus[id] for id in ids), *_others(question, found)[:1]]
    rng.shuffle(shown)
    return example.copy(found=[str(passage) for passage in shown], search_query=later_query(question, place))


def _criticized(
    example: dspy.Example, question: Question, other: Question, corpus: Corpus, rng: random.Random
) -> dspy.Example:
    """The example with an answer to judge: with equal chances a right one, or a wrong one.

    Where no hop has a wrong one, it is the other verdict, or another question's answer.
    """
    verdicts = ["yes", "no"]
    others = verdicts if question.answers[0].lower() in verdicts else other.answers[:1]
    wrong = wrong_answers(question) or wrong_answers(question, others)
    candidate = rng.choice(wrong) if wrong and rng.random() < 0.5 else question.answers[0]
    example = example.copy(candidate=candidate, useful=usefulness(question, candidate))
    if "passage" not in example:
        return example
    supports_it, holds_it = (
        [str(corpus[id]) for id in ids] for ids in (supporting(question), holding(question, corpus))
    )
    return example.copy(supported=supports(question, supports_it, holds_it, example.passage, candidate))


def _decomposed(example: dspy.Example, question: Question) -> dspy.Example:
    """The example with its sub-questions, where there are several."""
    if split := subquestions(question):
        example = example.copy(subquestions=split)
    if split := ordered_subquestions(question):
        example = example.copy(ordered_subquestions=split, findings=findings(question))
    return example


def _others(question: Question, found: list[Passage]) -> list[Passage]:
    """Those of the passages found that do not support the answer."""
    return [passage for passage in found if passage.id not in supporting(question)]
