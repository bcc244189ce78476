"""What the embedded checkpoint is trained on, and that training it is repeatable."""

import dataclasses
import random

import pytest
import torch

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.question import Question
from hoptimizer.optimizers.training.retriever.colbert_data import QuestionWithContext, RetrievalSet, read_sets
from hoptimizer.optimizers.training.retriever.colbert_projection import RetrieverTrainingConfig, train
from hoptimizer.optimizers.training.retriever.colbert_queries import batch_queries
from hoptimizer.retrieval import Corpus, Passage


@pytest.fixture
def sets(published):
    return {one.name: one for one in read_sets(published)}


def test_a_fixed_part_of_the_questions_is_never_trained_on(sets):
    sizes = {name: (len(one.train), len(one.dev)) for name, one in sets.items()}
    assert sizes == {"2wikimultihopqa": (400, 100), "hotpotqa": (60, 40), "musique": (60, 40)}
    for one in sets.values():
        assert not {a.question.id for a in one.train} & {a.question.id for a in one.dev}


def test_every_supporting_passage_is_in_the_corpus(sets):
    for one in sets.values():
        for asked in [*one.train, *one.dev]:
            assert asked.question.passages
            assert all(id in one.corpus for id in [*asked.question.passages, *asked.context])


def test_a_question_and_its_hops_each_find_their_passages(sets):
    wiki = sets["2wikimultihopqa"]
    asked = next(a for a in wiki.train if a.question.type == "compositional" and len(a.question.hops) == 2)
    queries = batch_queries([asked], {id: wiki.corpus[id] for id in asked.context}, random.Random(0))
    first, second = (hop.passage for hop in asked.question.hops)
    assert queries[0].asked
    assert queries[0].positives == {first, second}
    assert [(q.positives, q.ignored) for q in queries[1:3]] == [({first}, {second}), ({second}, {first})]


def test_a_folder_without_data_sets_is_named(tmp_path):
    with pytest.raises(UserError, match="no folder 2wikimultihopqa or hotpotqa or musique"):
        read_sets(tmp_path)


def test_training_twice_gives_the_same_weights(sets):
    small = [dataclasses.replace(one, train=one.train[:4]) for one in sets.values()]
    config = RetrieverTrainingConfig(rank=1, steps=2, questions=1, distractors=1, sample=8, max_tokens=32)
    first, second = (train(small, config, lambda steps: steps) for _ in range(2))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first["linear.weight"].shape == (384, 384)


def test_a_passage_may_be_shorter_than_a_span():
    passages = {name: Passage(name, "", word) for name, word in [("a", "one"), ("b", "two"), ("c", "")]}
    question = Question(id="q", question="which?", answers=["one"], passages=["a"])
    one = RetrievalSet("tiny", Corpus(list(passages.values())), [QuestionWithContext(question, list(passages))], [])
    assert batch_queries(one.train, passages, random.Random(0))
