"""The bundled data set's language: what its pages and questions say, and what they call things."""

import re

import pytest

from hoptimizer.eval.atlas.facts import CLEAR_GAP, FactError, read
from hoptimizer.eval.atlas.mentions import Mentions
from hoptimizer.eval.atlas.pairs import NEAR
from hoptimizer.eval.atlas.selection import named_once


@pytest.fixture(scope="module")
def sentences(corpus) -> list[str]:
    """The sentences of all pages; an initial such as "J." ends none."""
    return [s for page in corpus.values() for s in re.split(r"(?<=[^A-Z.]\.) (?=\S)", page["text"])]


def test_compared_years_are_clearly_apart_and_often_near(splits):
    for rows in splits.values():
        gaps = []
        for row in rows:
            years = re.search(r"The year (\d+) is (earlier|later) than (\d+)\. So", row["rationale"])
            assert years or row["type"] != "comparison"
            if years:
                one, order, other = int(years[1]), years[2], int(years[3])
                assert (one < other) == (order == "earlier")
                gaps.append(abs(one - other))
        assert min(gaps) >= CLEAR_GAP
        assert sum(gap <= NEAR for gap in gaps) >= len(gaps) / 3


def test_rationales_of_pairs_compare_the_values(questions):
    for row in questions:
        if row["type"] in ("comparison", "yesno"):
            for hop in (row["hops"][-1], row["hops"][len(row["hops"]) // 2 - 1]):
                assert row["rationale"].count(hop["answer"]) >= 2, row["rationale"]


def test_what_questions_call_an_entity_means_one_thing(questions, corpus, facts):
    once = named_once(facts)
    by_id = {entity.id: entity for entity in facts.entities}
    for row in questions:
        pair = row["type"] in ("comparison", "yesno")
        for start in {row["passages"][0], row["passages"][len(row["passages"]) // 2 if pair else 0]}:
            assert once(by_id[start]), row["question"]
            assert by_id[start].name in row["question"] or by_id[start].labelled in row["question"]
    assert not once(next(city for city in facts.of("city") if city.name == "Cambridge"))


def test_labels_say_what_the_page_says(facts, corpus):
    labelled = [entity for entity in facts.entities if entity.label]
    assert len(labelled) == 4
    for entity in labelled:
        assert entity.label.split()[-1] in corpus[entity.id]["text"]


def test_no_single_page_answers_a_question_of_several_hops(questions, facts):
    mentions = Mentions(facts)
    names = {entity.id: entity.name for entity in facts.entities}
    for row in questions:
        if row["type"].startswith("bridge"):
            assert not mentions.together(names[row["passages"][0]], row["answers"][0]), row["question"]
        elif row["type"] != "single":
            second = row["passages"][len(row["passages"]) // 2]
            assert not mentions.together(names[row["passages"][0]], names[second]), row["question"]
    assert mentions.together("Io", "Jupiter")


def test_pages_do_not_say_what_the_name_says(sentences):
    for sentence in sentences:
        told = re.match(r"(?:The )?(.+?) (?:is|was) an? ([\w -]+?)(?: in| of| by| with| that|\.)", sentence)
        assert not told or told[2].split()[-1] not in told[1].lower().split(), sentence
        assert not re.search(r"is a university|was founded .*was founded", sentence)
        assert not re.search(r"\b([A-Z]\w+) (is )?in \1\b", sentence), sentence


def test_no_sentence_begins_with_a_numeral(sentences, questions):
    texts = [*sentences, *(row["question"] for row in questions)]
    texts += [s for row in questions for s in re.split(r"(?<=\.) ", row["rationale"])]
    assert [text for text in texts if text[0].isdigit()] == []


def test_ages_are_told_apart_by_three_years_or_more(corpus):
    told = [int(y) for page in corpus.values() for y in re.findall(r"about (\d+) years", page["text"])]
    assert len(told) > 50
    assert min(told) >= CLEAR_GAP
    assert not any(re.search(r"born (a|\d+) years? (before|after)", page["text"]) for page in corpus.values())


def test_a_place_that_was_called_otherwise_is_given_by_its_name_of_today(corpus, facts):
    kant = next(person for person in facts.of("person") if person.name == "Immanuel Kant")
    assert (kant.fields["birthplace"], kant.said("birthplace")) == ("Kaliningrad", "what is now Kaliningrad")
    assert "what is now Kaliningrad" in corpus["immanuel-kant"]["text"]


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("the Rhine", ["River Rhine", "Rhine River"]),
        ("the Hudson River", ["Hudson", "River Hudson"]),
        ("the River Clyde", ["Clyde", "Clyde River"]),
        ("Cambridge, Massachusetts", ["Cambridge"]),
        ("the Mediterranean Sea", ["Mediterranean"]),
        ("Danish krone", ["krone", "kroner"]),
        ("euro", ["euros"]),
        ("renminbi", ["RMB", "yuan"]),
        ("Kraków", ["Cracow", "Krakow"]),
        ("Zurich", ["Zürich"]),
        ("William Herschel", ["Herschel"]),
        ("Richard Wagner", ["Wagner"]),
        ("Giuseppe Verdi", ["Verdi"]),
        ("Wolfgang Amadeus Mozart", ["Mozart"]),
    ],
)
def test_other_names_count_as_right(facts, name, also):
    assert set(also) <= set(facts.answers(name))


def test_every_alias_and_label_is_of_something_in_the_tables(facts):
    values = {value for entity in facts.entities for value in entity.fields.values()}
    names = {entity.name for entity in facts.entities} | values
    assert facts.aliases.keys() <= names


def test_no_accepted_answer_could_mean_the_other_candidate(questions, corpus):
    for row in questions:
        if row["type"] == "comparison":
            starts = {corpus[row["passages"][i]]["title"] for i in (0, len(row["passages"]) // 2)}
            [wrong] = [title for title in starts if title.lower() != row["answers"][0].lower()]
            assert not any(answer in wrong for answer in row["answers"]), row["question"]


def test_a_malformed_row_is_named(tmp_path):
    (tmp_path / "facts_rivers.yaml").write_text("kind: river\ncolumns: [name, mouth]\nrows:\n- [the Rhine]\n")
    with pytest.raises(FactError, match=r"facts_rivers\.yaml: \['the Rhine'\] has 1 cells, not 2"):
        read(tmp_path)


def test_two_entities_of_one_title_are_refused(tmp_path):
    (tmp_path / "facts_rivers.yaml").write_text("kind: river\ncolumns: [name]\nrows:\n- [the Rhine]\n- [Rhine]\n")
    with pytest.raises(FactError, match="same title: rhine"):
        read(tmp_path)
