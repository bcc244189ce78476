"""Questions that are asked about a page, as IIRC's are: the page is kept, and searches are scoped to proposed pages."""

import asyncio
import json
import threading

import dspy
import pytest
from dspy.utils import DummyLM

from hoptimizer import Workbench, load_config
from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.runner import evaluate
from hoptimizer.models import LMSettings, build_adapter, build_lm
from hoptimizer.optimizers.labels.demonstrations import annotate
from hoptimizer.optimizers.labels.oracle import replay
from hoptimizer.programs import RAG, CoT, Direct, IRCoT
from hoptimizer.programs.steps import pages
from hoptimizer.retrieval import BM25Retriever, Corpus, HybridRetriever, Passage, RerankedRetriever, Retriever

# After the third example of listing 4 of IRCoT's paper.
ASKED = "What year was the theatre that held the 2016 NFL Draft built?"
BEARS = Passage("bears", "2016 Chicago Bears season", "The Bears chose players in the 2016 draft at the Auditorium.")
BUILT = Passage("built", "Auditorium Theatre", "It was built in 1889 in Chicago.")
HALL = Passage("hall", "Auditorium Theatre", "Its hall seats thousands of people.")
DRAFT = Passage("draft", "NFL Draft", "The year that the theatre of the 2016 NFL Draft was built is not known.")
CORPUS = Corpus([DRAFT, BEARS, HALL, BUILT], name="pages")
QUESTION = Question(id="1", question=ASKED, answers=["1889"], passages=["bears", "built"], main="bears")

TITLES = {"titles": json.dumps(["auditorium theater", "The Auditorium Theatre (Chicago)"])}
ANSWER = {"answer": "1889"}


def run(program, *said, main="bears"):
    with dspy.context(lm=DummyLM(list(said)), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        return program(question=ASKED, main=main)


def ids(prediction):
    return [passage.id for passage in prediction.passages]


def test_the_page_is_kept_and_the_search_scoped_to_the_nearest_titles():
    prediction = run(RAG(BM25Retriever(CORPUS), k=2, pages=3), TITLES, ANSWER)
    assert (prediction.answer, ids(prediction)) == ("1889", ["bears", "built", "hall"])
    titles, retrieved, read = prediction.steps
    assert titles.inputs == {"page": "bears", "question": ASKED, "number": 3}
    assert retrieved.inputs == {"query": ASKED, "titles": ["Auditorium Theatre"]}
    assert read.inputs["context"] == ["bears", "built", "hall"]


def test_titles_are_compared_beside_the_event_loop_with_what_is_made_of_a_corpus_once(monkeypatch):
    made, threads = [], set()
    monkeypatch.setattr(pages.utils, "default_process", lambda title: made.append(title) or title.lower())
    find = pages.process.extractOne
    noted = lambda *args, **options: threads.add(threading.current_thread()) or find(*args, **options)  # noqa: E731
    monkeypatch.setattr(pages.process, "extractOne", noted)
    corpus = Corpus(CORPUS.passages)
    for _ in range(2):
        assert ids(run(RAG(BM25Retriever(corpus), k=2, pages=3), TITLES, ANSWER)) == ["bears", "built", "hall"]
    assert threading.main_thread() not in threads
    assert {title: made.count(title) for title in corpus.pages} == dict.fromkeys(corpus.pages, 1)


def test_several_retrievers_of_one_corpus_are_scoped_too():
    hybrid = HybridRetriever([BM25Retriever(CORPUS)] * 2, corpus=CORPUS)
    prediction = run(RAG(hybrid, k=2, pages=3), TITLES, ANSWER)
    assert ids(prediction) == ["bears", "built", "hall"]


def test_every_search_of_a_chain_is_scoped():
    said = [
        TITLES,
        {"next_thought": "The theatre that held the 2016 NFL Draft is the Auditorium Theatre."},
        {"look_up": "Where do thousands of people sit?", "enough": "no", "final_answer": ""},
        ANSWER,
    ]
    program = IRCoT(BM25Retriever(CORPUS), k=1, max_passages=3, max_steps=1, reader="direct", fill=False, pages=3)
    prediction = run(program, *said)
    assert ids(prediction) == ["bears", "built", "hall"]
    assert [record.inputs.get("titles") for record in prediction.steps if record.step == "retrieve"] == [
        ["Auditorium Theatre"]
    ] * 2


def test_pages_that_are_not_among_the_first_thousand_are_looked_for_further_down():
    # All others have more of the question's words, and the page's rank beyond the thousandth.
    others = [Passage(f"other-{n}", f"Draft {n}", ASKED) for n in range(1_100)]
    corpus = Corpus([*others, *CORPUS])
    for retriever in (BM25Retriever(corpus), HybridRetriever([BM25Retriever(corpus)] * 2, corpus=corpus)):
        assert ids(run(RAG(retriever, k=2, pages=3), TITLES, ANSWER)) == ["bears", "built", "hall"]


def test_an_index_elsewhere_is_asked_for_no_more_than_it_gives():
    class Far(BM25Retriever):
        elsewhere = True
        asearch_pages = Retriever.asearch_pages

        def search(self, queries, k):
            if k > 1_000:
                raise UserError("k: expected at most 1000")
            return super().search(queries, k)

    corpus = Corpus([*(Passage(f"other-{n}", f"Draft {n}", ASKED) for n in range(1_100)), *CORPUS])
    for retriever in (Far(corpus), HybridRetriever([Far(corpus), BM25Retriever(corpus)], corpus=corpus)):
        assert asyncio.run(retriever.asearch_pages(ASKED, 2, ["Auditorium Theatre"])) == []
        assert len(asyncio.run(retriever.asearch_pages(ASKED, 2, ["Draft 7"]))) == 1


def test_bm25_finds_as_many_passages_of_a_page_as_are_wanted_wherever_all_others_are():
    others = [Passage(f"other-{n}", f"Draft {n}", "The theatre was named after a draft.") for n in range(1_100)]
    page = [Passage(f"page-{n}", "Auditorium Theatre", text) for n, text in enumerate(("It.", ASKED, "A theatre."))]
    corpus = Corpus([*others, page[0], *CORPUS, *page[1:]])
    retriever = BM25Retriever(corpus)
    found = asyncio.run(retriever.asearch_pages(ASKED, 9, ["Auditorium Theatre", "No page"]))
    of_page = [one for one in retriever.search([ASKED], len(corpus))[0] if one.title == "Auditorium Theatre"]
    assert (len(found), found) == (5, of_page), "as all passages are ranked"
    assert asyncio.run(retriever.asearch_pages(ASKED, 2, ["Auditorium Theatre"])) == of_page[:2]
    shortest = RerankedRetriever(retriever, lambda pairs: [-float(len(text)) for _, text in pairs], depth=9)
    [first, *_] = asyncio.run(shortest.asearch_pages(ASKED, 2, ["Auditorium Theatre"]))
    assert first.id == "page-0"


def test_a_page_may_be_named_by_its_title():
    prediction = run(RAG(BM25Retriever(CORPUS), k=1, pages=3), TITLES, ANSWER, main="Auditorium Theatre")
    assert ids(prediction) == ["hall", "built"]


@pytest.mark.parametrize("said", [{"titles": "[]"}, {"titles": "?"}])
def test_without_titles_the_whole_corpus_is_searched(said):
    prediction = run(RAG(BM25Retriever(CORPUS), k=1, pages=3), said, ANSWER)
    assert ids(prediction) == ["bears", "draft"]


def test_other_questions_and_programs_are_as_ever():
    for program, main in ((RAG(BM25Retriever(CORPUS), k=1, pages=3), None), (RAG(BM25Retriever(CORPUS), k=1), "bears")):
        prediction = run(program, ANSWER, main=main)
        assert (ids(prediction), [record.step for record in prediction.steps]) == (["draft"], ["retrieve", "reader"])


def test_a_page_that_is_not_there_is_one_line():
    with pytest.raises(UserError, match="main: 'lions' is neither a passage's id nor a page's title in pages"):
        run(RAG(BM25Retriever(CORPUS), pages=3), main="lions")
    with pytest.raises(UserError, match="the retriever does not tell its corpus"):
        run(RAG(HybridRetriever([BM25Retriever(CORPUS)] * 2), pages=3))


@pytest.mark.parametrize("kind", ["direct", "cot"])
def test_the_page_is_read_where_nothing_is_retrieved(kind):
    program = Direct(page=True) if kind == "direct" else CoT(page=True)
    with pytest.raises(TypeError, match="give it a corpus"):
        run(program, ANSWER)
    program.corpus = CORPUS
    assert program.deepcopy().corpus is CORPUS
    said = {"reasoning": "It was built in 1889."} if kind == "cot" else {}
    prediction = run(program, said | ANSWER)
    assert (prediction.answer, ids(prediction)) == ("1889", ["bears"])
    [read] = prediction.steps
    assert read.inputs == {"question": ASKED, "context": ["bears"]}
    assert ids(run(program, said | ANSWER, main=None)) == []
    with pytest.raises(UserError, match="main: 'lions' is neither"):
        run(program, main="lions")
    assert ids(run(Direct(), ANSWER)) == []


def test_a_config_reads_the_page_and_demonstrations_show_it_alone(tmp_path):
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(vars_of(passage)) + "\n" for passage in CORPUS))
    for split in ("train", "dev"):
        asked = QUESTION.model_copy(update={"id": split}).model_dump_json(exclude_defaults=True)
        (tmp_path / f"{split}.jsonl").write_text(f"{asked}\n")
    bench = Workbench(load_config(None, [f"data={tmp_path}", "program=direct", "program.page=true"]))
    assert ids(run(bench.program(), ANSWER)) == ["bears"]
    [example] = annotate(bench.data.split("train"), bench.data.corpus, None, distractors=1, seed=7)
    assert example.context == [str(BEARS)]
    assert (
        "context" not in annotate([QUESTION.model_copy(update={"main": None})], CORPUS, None, distractors=1, seed=7)[0]
    )


def vars_of(passage):
    return {"id": passage.id, "title": passage.title, "text": passage.text}


def test_what_is_asked_goes_with_the_question_through_dspy():
    assert QUESTION.to_dspy().inputs().toDict() == {"question": ASKED, "main": "bears"}
    with dspy.context(lm=DummyLM([TITLES, ANSWER]), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        evaluation = evaluate(RAG(BM25Retriever(CORPUS), k=2, pages=3), [QUESTION])
    assert (evaluation.rows[0].passages, evaluation.metrics["recall"]) == (["bears", "built", "hall"], 1.0)


def test_demonstrations_propose_as_many_titles_as_are_needed():
    [example] = annotate([QUESTION], CORPUS, BM25Retriever(CORPUS), distractors=1, seed=7)
    assert (example.page, example.titles, example.number) == (str(BEARS), ["Auditorium Theatre"], 1)
    assert example.inputs().keys() == ["question", "main"]
    assert (
        "titles" not in annotate([QUESTION.model_copy(update={"main": None})], CORPUS, None, distractors=1, seed=7)[0]
    )
    program = RAG(BM25Retriever(CORPUS), k=1, reader="none", pages=3)
    [taken] = asyncio.run(replay(program, QUESTION, CORPUS, ["titles"]))
    assert taken.outputs == {"titles": ["Auditorium Theatre"]}


def test_a_real_model_proposes_titles():
    lm = build_lm(LMSettings(model="local/smollm2-135m-instruct", max_tokens=24))
    program = IRCoT(BM25Retriever(CORPUS), k=1, max_passages=2, max_steps=1, pages=2)
    with dspy.context(lm=lm, adapter=build_adapter()):
        prediction = program(question=ASKED, main="bears")
    assert prediction.passages[0].id == "bears"
    assert {record.step for record in prediction.steps} <= {"retrieve", *program.step_names}
