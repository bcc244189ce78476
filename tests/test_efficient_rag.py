"""EfficientRAG's control flow, with scripted small models over a scripted retriever."""

import asyncio

import dspy
import pytest
from scripted import ScriptedLM, ScriptedRetriever

from hoptimizer.programs import EfficientRAG
from hoptimizer.programs.record import counts
from hoptimizer.retrieval import Passage

QUESTION = "Where was the director of The Bridge born?"
FILM = Passage("film", "The Bridge", "A film by Ines Moreau and Karl Adler.")
MOREAU = Passage("moreau", "Ines Moreau", "Born in Lyon.")
ADLER = Passage("adler", "Karl Adler", "Born in Bern.")
LYON = Passage("lyon", "Lyon", "A city.")
FOUND = {QUESTION: [LYON, FILM], "Ines Moreau": [FILM, MOREAU], "Karl Adler": [ADLER, LYON]}
TAGS = {"film": ("continue", ["Moreau", "Karl"]), "moreau": ("finish", ["Lyon"]), "adler": ("finish", ["Bern"])}


class Labels:
    """A scripted labeler; remembers what it was asked, and how many were asked together."""

    extra_inputs = frozenset({"rank", "round"})

    def __init__(self, tags=TAGS):
        self.tags, self.asked, self.running, self.most = tags, [], 0, 0

    async def __call__(self, inputs):
        self.asked.append(inputs)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        title = inputs["passage"].partition(":")[0]
        id = next(p.id for p in (FILM, MOREAU, ADLER, LYON) if p.title == title)
        tag, useful = self.tags.get(id, ("terminate", []))
        return {"tag": tag, "useful": useful, "probability": 0.9 if id == "film" else 0.6}


class Keeps:
    """A scripted filter that keeps what is known."""

    def __init__(self):
        self.asked = []

    async def __call__(self, inputs):
        self.asked.append((inputs["query"], inputs["known"]))
        return {"next_query": inputs["known"]}


def answer(program, question=QUESTION):
    with dspy.context(lm=ScriptedLM(lambda field, inputs: "Lyon"), adapter=dspy.ChatAdapter()):
        return asyncio.run(program.acall(question=question))


def made(labeler=None, filter=None, script=FOUND, **options):
    program = EfficientRAG(ScriptedRetriever(script), **{"k": 2, **options})
    program.models = {"labeler": labeler or Labels(), "filter": filter or Keeps()}
    return program


def test_walks_the_hops_and_reads_once():
    program = made()
    result = answer(program)
    assert result.answer == "Lyon"
    assert [passage.id for passage in result.passages] == ["film", "moreau", "adler"]
    assert program.retriever.queries == [QUESTION, "Ines Moreau", "Karl Adler"]
    counted = counts(result.steps)
    assert (counted["lm_calls"], counted["retrievals"], counted["iterations"]) == (1, 3, 2)
    assert counted["model_calls"] == 2 + 2 + 3  # labels, next queries, labels of what is not in the pool


def test_records_carry_the_round_as_their_depth():
    rounds = [(s.step, s.depth) for s in answer(made()).steps]
    assert rounds == [
        *[("retrieve", 0), ("labeler", 0), ("labeler", 0), ("filter", 0), ("filter", 0)],
        *[("retrieve", 1), ("labeler", 1), ("retrieve", 1), ("labeler", 1), ("labeler", 1), ("reader", 0)],
    ]


def test_a_labeler_that_asks_for_place_and_round_is_told_them():
    labeler = Labels()
    answer(made(labeler))
    told = [(asked["passage"].partition(":")[0], asked["rank"], asked["round"]) for asked in labeler.asked]
    assert told == [("Lyon", 1, 0), ("The Bridge", 2, 0), ("Ines Moreau", 2, 1), ("Karl Adler", 1, 1), ("Lyon", 2, 1)]
    other = Labels()
    other.extra_inputs = frozenset()
    answer(made(other))
    assert set(other.asked[0]) == {"query", "passage"}


def test_passages_are_labelled_together():
    labeler = Labels()
    answer(made(labeler))
    assert labeler.most == 3


def test_whole_names_or_the_labelled_words_alone():
    program = made(whole_names=False)
    answer(program)
    assert program.retriever.queries == [QUESTION, "Moreau", "Karl"]


@pytest.mark.parametrize(
    ("queries", "known"),
    [
        ("span", ["Ines Moreau", "Karl Adler"]),
        ("passage", ["Ines Moreau Karl Adler"]),
        ("query", ["Ines Moreau Karl Adler"]),
    ],
)
def test_what_makes_a_query(queries, known):
    keeps = Keeps()
    answer(made(filter=keeps, queries=queries))
    assert keeps.asked == [(QUESTION, words) for words in known]


def test_queries_of_a_query_join_all_its_passages():
    tags = {"film": ("continue", ["Moreau"]), "lyon": ("continue", ["A city"])}
    for queries, known in (("passage", ["Ines Moreau", "A city"]), ("query", ["Ines Moreau A city"])):
        keeps = Keeps()
        answer(made(Labels(tags), keeps, queries=queries, max_rounds=2))
        assert keeps.asked == [(QUESTION, words) for words in known]  # the surer passage first


def test_without_the_filter_the_labelled_words_are_the_query():
    keeps = Keeps()
    program = made(filter=keeps)
    program.filter = None
    answer(program)
    assert keeps.asked == []
    assert program.retriever.queries == [QUESTION, "Ines Moreau", "Karl Adler"]


def test_an_empty_next_query_gives_way_to_what_is_known():
    class Nothing(Keeps):
        async def __call__(self, inputs):
            return {"next_query": ""}

    program = made(filter=Nothing())
    answer(program)
    assert program.retriever.queries == [QUESTION, "Ines Moreau", "Karl Adler"]


def test_rounds_and_queries_are_limited():
    program = made(max_rounds=1)
    assert [passage.id for passage in answer(program).passages] == ["film"]
    assert program.retriever.queries == [QUESTION]
    program = made(max_queries=1)
    answer(program)
    assert program.retriever.queries == [QUESTION, "Ines Moreau"]


def test_of_queries_that_say_the_same_the_surest_counts():
    class Same(Keeps):
        async def __call__(self, inputs):
            await super().__call__(inputs)
            return {"next_query": {"Ines Moreau": "Lyon", "Karl Adler": "Bern"}.get(inputs["known"], "LYON")}

    tags = {"film": ("continue", ["Moreau", "Karl"]), "lyon": ("continue", ["A city"])}
    program = made(Labels(tags), Same(), max_queries=1)
    answer(program)
    assert program.retriever.queries[1] == "Lyon"


def test_no_query_is_asked_twice_and_no_passage_pooled_twice():
    circle = {"film": ("continue", ["Moreau"]), "moreau": ("continue", ["Ines Moreau", "the BRIDGE", "Karl"])}
    program = made(Labels(circle), max_rounds=9)
    result = answer(program)
    assert program.retriever.queries == [QUESTION, "Ines Moreau"]
    assert [passage.id for passage in result.passages] == ["film", "moreau"]


def test_a_passage_whose_words_the_query_names_all_is_followed_all_the_same():
    told = Keeps()
    program = made(Labels({"film": ("continue", ["The Bridge"])}), told)
    answer(program)
    assert told.asked == [(QUESTION, "The Bridge")]


def test_nothing_kept_ends_the_search_and_the_reader_has_nothing():
    program = made(Labels({}))
    result = answer(program)
    assert result.passages == []
    assert program.retriever.queries == [QUESTION]


def test_a_later_k_of_its_own():
    program = made(later_k=1)
    answer(program)
    found = [step.outputs["passages"] for step in answer(program).steps if step.step == "retrieve"]
    assert list(map(len, found)) == [2, 1, 1]


def test_the_papers_k_is_the_default():
    assert EfficientRAG(ScriptedRetriever(FOUND)).k == 10


def test_the_papers_preset_asks_one_merged_query_per_round():
    keeps = Keeps()
    script = {**FOUND, "Moreau Karl": [ADLER, MOREAU]}
    program = EfficientRAG(ScriptedRetriever(script), **EfficientRAG.presets["paper"])
    program.models = {"labeler": Labels(), "filter": keeps}
    answer(program)
    assert keeps.asked == [(QUESTION, "Moreau Karl")]
    assert program.retriever.queries == [QUESTION, "Moreau Karl"]


def test_without_a_labeler_everything_found_is_read():
    program = EfficientRAG(ScriptedRetriever(FOUND), k=2)
    result = answer(program)
    assert [passage.id for passage in result.passages] == ["lyon", "film"]
    assert counts(result.steps)["lm_calls"] == 1


def test_a_language_model_that_is_named_for_it_labels():
    class Labelling(ScriptedLM):
        async def acall(self, prompt=None, messages=None, **kwargs):
            tag = "continue" if "The Bridge:" in messages[-1]["content"] else "terminate"
            return [self._format_answer_fields({"useful": '["Ines Moreau"]', "tag": tag})]

    program = EfficientRAG(ScriptedRetriever(FOUND), k=2)
    program.lms = {"labeler": Labelling(None)}
    result = answer(program)
    assert program.retriever.queries == [QUESTION, "Ines Moreau"]
    assert [passage.id for passage in result.passages] == ["film"]
    assert counts(result.steps)["lm_calls"] == 2 + 1 + 1
