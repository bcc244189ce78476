"""Control flow of the programs, on a scripted language model and a scripted retriever."""

import asyncio

import dspy
import pytest
from dspy.utils import DummyLM
from dspy.utils.exceptions import ContextWindowExceededError
from scripted import ScriptedRetriever, passage

from hoptimizer.programs import RAG, CoT, Direct, IRCoT
from hoptimizer.programs.reader import answer_of, stated_answer
from hoptimizer.programs.record import counts
from hoptimizer.retrieval import Passage

QUESTION = "Who directed the film that Ada starred in?"


def run(program, *answers, question=QUESTION):
    with dspy.context(lm=DummyLM(list(answers)), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        return program(question=question)


def thoughts(*sentences):
    """What a model says that thinks these sentences, and knows the answer x with the last one."""
    *_, knows = said = going_on(*sentences)
    knows |= {"enough": "yes", "final_answer": "x"}
    return said


def going_on(*sentences, look_up=""):
    """What a model says that thinks these sentences, and never knows the answer."""
    missing = {"look_up": look_up, "enough": "no", "final_answer": ""}
    return [said for sentence in sentences for said in ({"next_thought": sentence}, dict(missing))]


def said(answer):
    """What a reader with a chain of thought says."""
    return {"reasoning": "It is said.", "answer": answer}


def phrases(*sentences):
    """Thoughts in the protocol of IRCoT's paper."""
    return [{"thought": sentence} for sentence in sentences]


def test_a_sampling_copy_of_the_default_model_leaves_steps_on_their_own():
    default, own, other = (dspy.LM(f"openai/{name}", api_key="none") for name in ("default", "own", "other"))
    program = IRCoT(ScriptedRetriever({}), k=1)
    program.lms["reader"] = own
    with dspy.context(lm=default):
        program.set_lm(default.copy(rollout_id=3, temperature=1.0))
        assert (program.reason.lm.model, program.reader.lm.model) == ("openai/default", "openai/own")
        assert {program.reader.lm.kwargs[name] for name in ("rollout_id", "temperature")} == {3, 1.0}
        assert own.kwargs.get("rollout_id") is None
        program.set_lm(other)
        assert program.reader.lm.model == "openai/other"


def test_direct_answers_from_memory_with_one_call():
    prediction = run(Direct(), {"answer": " Orson Welles "})
    assert prediction.answer == "Orson Welles"
    assert prediction.passages == []
    assert counts(prediction.steps)["lm_calls"] == 1


def test_cot_answers_beside_its_reasoning():
    prediction = run(CoT(), {"reasoning": "Ada starred in Kane. So the answer is: Ada.", "answer": "Welles"})
    assert prediction.answer == "Welles"


def test_cot_in_the_papers_protocol_takes_the_answer_from_the_end_of_the_chain():
    prediction = run(CoT(reader="phrase"), {"chain": "Ada starred in Kane. So the answer is: Welles."})
    assert prediction.answer == "Welles"


@pytest.mark.parametrize(
    ("chain", "answer"),
    [
        ("He was born in 1915. So the answer is: 1915.", "1915"),
        ("The Answer is Paris", "Paris"),
        ("So the answer is: St. Louis.", "St. Louis"),
        ("So the answer is: Not Fade Away.", "Not Fade Away"),
        ("So the answer is: Nowhere in Africa.", "Nowhere in Africa"),
        ("So the answer is: Not Here, Not Now", "Not Here, Not Now"),
        ("So the answer is: The Passage.", "The Passage"),
        ("So the answer is: Na.", "Na"),
        ("So the answer is: Unknown Pleasures.", "Unknown Pleasures"),
        ("So the answer is: None of the Above.", "None of the Above"),
        ("So the answer is: No Answer.", "No Answer"),
        ("So the answer is: No Context.", "No Context"),
        ("So the answer is: Impossible to Forget.", "Impossible to Forget"),
        ("So the answer is: The Text of the Bible.", "The Text of the Bible"),
        ("So the answer is: Based on a True Story.", "Based on a True Story"),
        ("The answer is: Rome. No, Rome is older. So the answer is: Bern.", "Bern"),
    ],
)
def test_a_chain_states_its_last_answer(chain, answer):
    assert stated_answer(chain) == answer_of(chain) == answer


@pytest.mark.parametrize(
    ("chain", "taken"),
    [
        ("He was born in Paris.", "He was born in Paris"),
        ("He is of Bern or Basel. The answer is not in the passages.", "not in the passages"),
        ("So the answer is: unknown.", "unknown"),
        ("So the answer is: not found in any of the given documents.", "not found in any of the given documents"),
        ("The answer is not explicitly stated", "not explicitly stated"),
        ("The answer is cannot be determined from the passages.", "cannot be determined from the passages"),
        ("So the answer is: None of the passages say.", "None of the passages say"),
        ("So the answer is: The passages do not say who.", "The passages do not say who"),
        ("So the answer is: It is not stated.", "It is not stated"),
        ("So the answer is: insufficient information.", "insufficient information"),
        ("So the answer is: N/A.", "N/A"),
        ("So the answer is: unknown (the passages do not say).", "unknown (the passages do not say)"),
        ("So the answer is: No information available.", "No information available"),
        ("So the answer is: There is not enough information.", "There is not enough information"),
        ("So the answer is: Unable to determine.", "Unable to determine"),
        ("So the answer is: It is unclear.", "It is unclear"),
        ("So the answer is: **Unknown**", "**Unknown**"),
        ("So the answer is: [unknown].", "[unknown]"),
        ("So the answer is: The question cannot be answered.", "The question cannot be answered"),
        ("So the answer is: I do not have enough information.", "I do not have enough information"),
        ("So the answer is: From the passages, it cannot be said.", "From the passages, it cannot be said"),
        ("So the answer is: The provided passages do not say.", "The provided passages do not say"),
        ("", ""),
    ],
)
def test_a_chain_without_an_answer_states_none_and_gives_no_more_than_it_says(chain, taken):
    assert stated_answer(chain) is None
    assert answer_of(chain) == taken


def test_rag_retrieves_once_with_the_question_and_reads_what_it_found():
    retriever = ScriptedRetriever({QUESTION: [passage("kane"), passage("welles"), passage("spare")]})
    prediction = run(RAG(retriever, k=2), {"answer": "Welles"})
    assert [p.id for p in prediction.passages] == ["kane", "welles"]
    retrieved, read = prediction.steps
    assert (retrieved.kind, retrieved.inputs) == ("retrieval", {"query": QUESTION})
    assert read.inputs == {"question": QUESTION, "context": ["kane", "welles"]}
    assert read.outputs == {"answer": "Welles"}


def test_no_reader_scores_retrieval_without_a_call():
    retriever = ScriptedRetriever({QUESTION: [passage("kane")]})
    prediction = run(RAG(retriever, reader="none"))
    assert prediction.answer == ""
    assert [p.id for p in prediction.passages] == ["kane"]
    assert counts(prediction.steps)["lm_calls"] == 0


def test_ircot_retrieves_with_each_thought_and_stops_when_the_facts_suffice():
    first = "Ada starred in Kane."
    retriever = ScriptedRetriever({QUESTION: [passage("ada")], first: [passage("kane")]})
    prediction = run(IRCoT(retriever), *thoughts(first, "Welles directed Kane."), said("Welles"))
    assert retriever.queries == [QUESTION, first]
    assert [p.id for p in prediction.passages] == ["ada", "kane"]
    assert prediction.answer == "Welles"
    steps = ["retrieve", "reason", "follow_up", "retrieve", "reason", "follow_up", "reader"]
    assert [record.step for record in prediction.steps] == steps


def test_ircot_goes_on_where_the_facts_suffice_for_no_answer():
    retriever = ScriptedRetriever({QUESTION: [passage("ada")]})
    first, second = thoughts("Ada starred in Kane.", "Welles directed Kane.")[::2]
    unknown = {"enough": "yes", "final_answer": "Not mentioned in the passages.", "look_up": "Who directed Kane?"}
    known = {"enough": "yes", "final_answer": "Welles", "look_up": ""}
    prediction = run(IRCoT(retriever, reader="none"), first, unknown, second, known)
    assert retriever.queries == [QUESTION, "Who directed Kane?"]
    assert prediction.answer == "Welles"


def test_ircot_searches_with_what_a_thought_leaves_open():
    first, missing = "Ada starred in Kane.", "Who directed Kane?"
    retriever = ScriptedRetriever({QUESTION: [passage("ada")], missing: [passage("kane")]})
    run(IRCoT(retriever, max_steps=1), *going_on(first, look_up=missing), said("Welles"))
    assert retriever.queries == [QUESTION, missing]


def test_ircot_searches_with_the_thought_where_the_question_itself_is_left_open():
    first = "Ada starred in Kane."
    retriever = ScriptedRetriever({})
    run(IRCoT(retriever, max_steps=1), *going_on(first, look_up=f" {QUESTION.upper()}"), said("Welles"))
    assert retriever.queries == [QUESTION, first]


def test_ircot_asks_no_query_twice():
    retriever = ScriptedRetriever({})
    chain = going_on("Ada acted.", "Ada sang.", look_up="Which film?")
    run(IRCoT(retriever, max_steps=2), *chain, said("x"))
    assert retriever.queries == [QUESTION, "Which film?", "Ada sang."]
    retriever = ScriptedRetriever({})
    run(IRCoT(retriever, max_steps=1), *going_on(QUESTION), said("x"))
    assert retriever.queries == [QUESTION]


def test_ircot_fills_its_collection_with_what_else_the_question_found():
    first = "Ada starred in Kane."
    retriever = ScriptedRetriever({QUESTION: [*map(passage, "abcdef")], first: [passage("k"), passage("l")]})
    chain = [*going_on(first), *thoughts("Welles directed Kane."), said("Welles")]
    prediction = run(IRCoT(retriever, k=2, max_passages=5), *chain)
    assert [p.id for p in prediction.passages] == ["a", "b", "k", "c", "d"]
    shown = [record.inputs["context"] for record in prediction.steps if record.step == "reason"]
    assert shown == [["a", "b"], ["a", "b", "k"]]
    assert len(retriever.queries) == 2
    prediction = run(IRCoT(retriever, k=2, max_passages=5, fill=False), *chain)
    assert [p.id for p in prediction.passages] == ["a", "b", "k"]
    prediction = run(IRCoT(retriever, k=2, max_passages=5, later_k=None), *chain)
    assert [p.id for p in prediction.passages] == ["a", "b", "k", "l", "c"]


def test_ircot_adds_what_a_later_query_finds_that_is_not_there():
    first = "Ada starred in Kane."
    retriever = ScriptedRetriever({QUESTION: [*map(passage, "abcdef")], first: [passage("a"), passage("k")]})
    chain = [*going_on(first, look_up="(none)"), *thoughts("Welles directed Kane."), said("Welles")]
    prediction = run(IRCoT(retriever, k=2, max_passages=4), *chain)
    assert [p.id for p in prediction.passages] == ["a", "b", "k", "c"]
    assert retriever.queries == [QUESTION, first], "what is to be looked up is nothing"
    prediction = run(IRCoT(retriever, k=2, max_passages=4, later_k=2), *chain)
    assert [p.id for p in prediction.passages] == ["a", "b", "k", "c"]


def test_ircot_thinks_no_further_once_no_passage_more_would_be_read():
    retriever = ScriptedRetriever({QUESTION: [*map(passage, "abc")]})
    prediction = run(IRCoT(retriever, k=2, max_passages=2), said("Welles"))
    assert [record.step for record in prediction.steps] == ["retrieve", "reader"]
    program = IRCoT(retriever, k=2, max_passages=2, reader="none")
    assert run(program, *thoughts("Ada acted.", "Welles directed.")).answer == "x"


def test_ircot_in_the_papers_protocol_stops_when_the_chain_states_an_answer():
    first = "Ada starred in Kane."
    retriever = ScriptedRetriever({QUESTION: [passage("ada")], first: [passage("kane")]})
    program = IRCoT(retriever, thoughts="phrase", reader="phrase")
    chain = {"chain": "Welles did. So the answer is: Welles."}
    prediction = run(program, *phrases(first, "So the answer is: Welles."), chain)
    assert retriever.queries == [QUESTION, first]
    assert prediction.answer == "Welles"


def test_a_chain_goes_on_where_a_thought_says_that_the_answer_is_not_there():
    retriever = ScriptedRetriever({})
    program = IRCoT(retriever, thoughts="phrase", reader="none")
    missing = "The answer is not in the passages."
    prediction = run(program, *phrases(missing, "So the answer is: Welles."))
    assert retriever.queries == [QUESTION, missing]
    assert prediction.answer == "Welles"


@pytest.mark.parametrize(
    "first",
    [
        "The U.S. Senate passed it in 1990.",
        "1. The director is Welles.",
        "Dr. No is a film by Young.",
        "It was directed by Dr. No.",
    ],
)
def test_ircot_keeps_only_the_first_sentence_of_a_thought(first):
    retriever = ScriptedRetriever({})
    prediction = run(
        IRCoT(retriever, max_steps=2), *thoughts(f"{first} It was signed by Bush.", "Bush did."), said("1990")
    )
    assert retriever.queries[1] == first
    assert prediction.steps[4].inputs["known"] == first


def test_ircot_stops_at_the_step_limit_without_a_spare_retrieval():
    retriever = ScriptedRetriever({})
    run(IRCoT(retriever, max_steps=2), *going_on("Ada was born.", "Ada acted."), said("x"))
    assert retriever.queries == [QUESTION, "Ada was born.", "Ada acted."]
    retriever = ScriptedRetriever({})
    run(IRCoT(retriever, max_steps=2, reader="none"), *going_on("Ada was born.", "Ada acted."))
    assert retriever.queries == [QUESTION, "Ada was born."]


def test_ircot_stops_when_no_thought_comes():
    prediction = run(IRCoT(ScriptedRetriever({})), *going_on("  "), said("x"))
    assert counts(prediction.steps) | {"lm_calls": 2, "retrievals": 1} == counts(prediction.steps)


def test_ircot_stops_when_a_thought_repeats_an_earlier_one():
    retriever = ScriptedRetriever({})
    run(IRCoT(retriever), *going_on("Ada acted.", "Ada sang.", "Ada acted."), said("x"))
    assert retriever.queries == [QUESTION, "Ada acted.", "Ada sang."]


def test_ircot_searches_with_the_last_thought_that_is_not_mere_inference():
    retriever = ScriptedRetriever({})
    run(
        IRCoT(retriever, max_steps=4),
        *thoughts("Kane is from 1941.", "Thus Kane is the older one.", "1941 + 4 = 1945", "Kane is it."),
        said("Kane"),
    )
    assert retriever.queries == [QUESTION, "Kane is from 1941."]


@pytest.mark.parametrize(
    "fact",
    ["He reigned 2009-2017.", "The Boeing 747-400 was built in 1988.", "She was born on 1912-04-15.", "It won 3-1."],
)
def test_ircot_searches_with_facts_that_have_hyphens_between_digits(fact):
    retriever = ScriptedRetriever({})
    run(IRCoT(retriever, max_steps=1), *going_on(fact), said("x"))
    assert retriever.queries == [QUESTION, fact]


def test_ircot_searches_no_further_when_every_thought_is_inference():
    retriever = ScriptedRetriever({})
    run(IRCoT(retriever, max_steps=1), *going_on("So it must be."), said(""))
    assert retriever.queries == [QUESTION]


def test_ircot_can_search_with_whatever_the_last_thought_is():
    retriever = ScriptedRetriever({})
    run(IRCoT(retriever, max_steps=1, skip_inference=False), *going_on("So what?"), said(""))
    assert retriever.queries == [QUESTION, "So what?"]


def test_ircot_can_search_without_interrogatives():
    retriever = ScriptedRetriever({})
    run(IRCoT(retriever, max_steps=1, drop_interrogatives=True), *going_on("Ada, who acted."), said(""))
    assert retriever.queries == ["directed the film that Ada starred in?", "Ada, acted."]


def test_ircot_collects_at_most_its_cap_first_come_first_kept():
    retriever = ScriptedRetriever({QUESTION: [passage("a"), passage("b")], "T.": [passage("c"), passage("d")]})
    prediction = run(IRCoT(retriever, max_passages=3), *thoughts("T.", "U."), said("x"))
    assert [p.id for p in prediction.passages] == ["a", "b", "c"]


def test_ircot_skips_long_paragraphs_cuts_the_rest_and_drops_near_duplicates():
    long, cut = passage("long", "word " * 601), passage("cut", "word " * 400)
    tower = Passage("tower", "Eiffel Tower", "The tower stands in Paris since 1889, by the river Seine.")
    twin = Passage("twin", "Eiffel Tower.", "The tower stands in Paris since 1889, by the river Seine!")
    retriever = ScriptedRetriever({QUESTION: [long, cut, tower, twin]})
    prediction = run(IRCoT(retriever), *thoughts("It is x."), said("x"))
    assert [p.id for p in prediction.passages] == ["cut", "tower"]
    assert len(prediction.passages[0].text.split()) == 350


def test_ircot_keeps_passages_of_which_only_the_title_or_only_the_text_is_alike():
    stub = "It is a village in the administrative district of Gmina Lubin, in south-western Poland."
    village, namesake = Passage("a", "Zimna Woda", stub), Passage("b", "Zimna Woda", "A river that flows through Lviv.")
    other, same = Passage("c", "Gorzyca", stub), Passage("d", "Zimna Woda", stub + ".")
    retriever = ScriptedRetriever({QUESTION: [village, namesake, other, same]})
    prediction = run(IRCoT(retriever), *thoughts("It is x."), said("x"))
    assert [p.id for p in prediction.passages] == ["a", "b", "c"]


def test_ircot_compares_passages_without_titles_by_their_texts():
    retriever = ScriptedRetriever(
        {QUESTION: [Passage("a", "", "The tower is tall."), Passage("b", "", "The tower is tall!")]}
    )
    prediction = run(IRCoT(retriever), *thoughts("It is x."), said("x"))
    assert [p.id for p in prediction.passages] == ["a"]


@pytest.mark.parametrize(
    ("form", "said", "answer"),
    [
        ("typed", thoughts("Ada acted.", "Welles directed."), "x"),
        ("typed", going_on("Ada acted.", "Ada acted."), "Ada acted"),
        ("phrase", phrases("Ada acted.", "So the answer is: Welles."), "Welles"),
        ("phrase", phrases(""), ""),
    ],
)
def test_ircot_without_a_reader_answers_from_its_chain(form, said, answer):
    assert run(IRCoT(ScriptedRetriever({}), thoughts=form, reader="none"), *said).answer == answer


def test_a_step_that_cannot_be_parsed_is_recorded_and_does_not_stop_the_program():
    program = IRCoT(ScriptedRetriever({QUESTION: [passage("a")]}))
    prediction = run(program, {"wrong": "?"}, said("x"))
    assert prediction.answer == "x"
    assert counts(prediction.steps)["parse_failures"] == 1


def test_a_step_can_have_a_language_model_of_its_own():
    program = IRCoT(ScriptedRetriever({}), max_steps=1)
    program.lms = {"reader": DummyLM([said("the reader's")])}
    assert run(program, *thoughts("Ada acted.")).answer == "the reader's"


class NarrowLM(DummyLM):
    """Refuses prompts of more than ``limit`` words; remembers those it took."""

    def __init__(self, answers, limit):
        super().__init__(answers)
        self.limit = limit
        self.prompts = []

    async def acall(self, prompt=None, messages=None, **kwargs):
        text = " ".join(message["content"] for message in messages)
        if len(text.split()) > self.limit:
            raise ContextWindowExceededError(message="too long")
        self.prompts.append(text)
        return await super().acall(prompt, messages=messages, **kwargs)


def test_a_prompt_that_outgrows_the_context_loses_demonstrations_first_then_the_longest_passages():
    retriever = ScriptedRetriever({QUESTION: [passage("long", "word " * 300), passage("short", "brief")]})
    program = RAG(retriever)
    demo = dspy.Example(context=["demonstration " * 100], question="?", answer="!")
    program.reader.demos = [demo, demo]
    lm = NarrowLM([{"answer": "Welles"}], limit=260)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        prediction = program(question=QUESTION)
    assert prediction.answer == "Welles"
    assert "demonstration" not in lm.prompts[0]
    assert QUESTION in lm.prompts[0]
    assert "brief" in lm.prompts[0]
    assert prediction.steps[1].calls > 3


def test_forward_works_inside_a_running_event_loop():
    async def notebook():
        return run(Direct(), {"answer": "yes"})

    assert asyncio.run(notebook()).answer == "yes"


def test_a_copy_of_a_program_shares_its_retriever():
    retriever = ScriptedRetriever({})
    assert RAG(retriever).deepcopy().retriever is retriever
