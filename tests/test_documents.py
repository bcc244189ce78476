"""A data set of one's own: a folder of documents, and a table of questions."""

import io
import json
import os
import re
import sys
import time
import zipfile
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from test_importers import assert_one_line

from hoptimizer.cli import main
from hoptimizer.common.errors import UserError
from hoptimizer.eval import Question, check, load
from hoptimizer.eval.chunking import make_chunker
from hoptimizer.eval.data_warnings import find_warnings, read_at_most
from hoptimizer.eval.datasets.folder import read_passages
from hoptimizer.eval.datasets.rows import fail, read_rows
from hoptimizer.eval.documents.converting import read_document
from hoptimizer.eval.documents.importing import import_documents, is_table
from hoptimizer.eval.documents.markdown import of_markdown
from hoptimizer.eval.documents.table import read_table
from hoptimizer.eval.documents.web_page import of_html
from hoptimizer.eval.splits import divide
from hoptimizer.retrieval import Corpus, Passage

MARKDOWN = """---
title: The Alma
---
# The Alma

The *Alma* is a [ferry](https://example.org) of **Fjordlight**.

## Crew

- Ines Moreau, captain

| ship | built |
|------|-------|
| Alma | 1998  |

```
# no heading
```
"""
HTML = "<title>Ports &amp; more</title><style>p {}</style><h1>Oslo</h1><p>A port<br>in the east.<script>x()</script>"


def pdf(*lines: str, trailer: str = "") -> bytes:
    """A PDF file with lines of text."""
    shown = " ".join(f"1 0 0 1 72 {700 - 20 * number} Tm ({line}) Tj" for number, line in enumerate(lines))
    stream = f"BT /F1 12 Tf {shown} ET" if lines else ""
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        "/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
    ]
    made, places = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(made))
        made += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R {trailer} >>\n"
    return f"{made}{end}startxref\n{len(made)}\n%%EOF\n".encode("latin-1")


def docx(text: str) -> bytes:
    """A DOCX file with one paragraph."""
    file = io.BytesIO()
    word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    package = "http://schemas.openxmlformats.org/package/2006"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{package}/content-types"><Default Extension="rels" ContentType="application/xml"/>'
            f'<Override PartName="/word/document.xml" ContentType="{kind}"/></Types>',
        )
        archive.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" Type="{office}" '
            'Target="word/document.xml"/></Relationships>',
        )
        body = f"<w:body><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:body>"
        archive.writestr("word/document.xml", f'<w:document xmlns:w="{word}">{body}</w:document>')
    return file.getvalue()


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "ports").mkdir(parents=True)
    (folder / "alma.md").write_text(MARKDOWN, encoding="utf-8")
    (folder / "ports" / "oslo.html").write_text(HTML, encoding="utf-8")
    (folder / "dog_rules.txt").write_text("Dogs stay on deck.\n\nCats do not.", encoding="utf-8")
    (folder / "logo.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.md").write_text("# Hidden", encoding="utf-8")
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "questions.csv"
    rows = [f"What is the number {number}?,{number}" for number in range(9)]
    file.write_text("\n".join(["Question,Answer", *rows, 'Who is captain?,"[""Ines Moreau"", ""Moreau""]"']))
    return file


def test_markdown_becomes_its_words_under_their_headings():
    outline = of_markdown(MARKDOWN)
    assert outline.title == "The Alma"
    assert [(section.headings, section.text) for section in outline.sections] == [
        ((), "The Alma is a ferry of Fjordlight."),
        (("Crew",), "Ines Moreau, captain\nship: Alma; built: 1998\n# no heading"),
    ]


@pytest.mark.parametrize(
    ("text", "title", "shown"),
    [
        ("---\n\n# Alma\n\nBuilt in 1998.\n\n---\n\nShe sails.", "Alma", "Built in 1998.|She sails."),
        ("---\n---\n# Alma\n\nBuilt.\n\n---\n\nShe sails.", "Alma", "Built.|She sails."),
        ("---\ntitle: >-\n  The\n  Alma\n---\nBuilt.", "The Alma", "Built."),
        ('---\ntitle: ""\n---\n# Alma\n\nBuilt.', "Alma", "Built."),
        ("---\ntitle: The Alma # main ship\n---\nBuilt.", "The Alma", "Built."),
        ('---\ntitle: "The \\"Alma\\""\n---\nBuilt.', 'The "Alma"', "Built."),
        ("---\ntitle: The Alma: a ship\ntags:\n  - ship\n---\nBuilt.", "The Alma: a ship", "Built."),
    ],
)
def test_what_stands_before_markdown_is_yaml_or_text(text: str, title: str, shown: str):
    outline = of_markdown(text)
    assert outline.title == title
    assert "|".join("|".join(section.text.split("\n")) for section in outline.sections) == shown


def test_no_heading_is_lost(tmp_path: Path):
    text = (
        "# Fleet\n\n## Alma\n\n### Captain\n\nInes Moreau.\n\n### Built in 1998\n\n"
        "## Bora\n\n### Captain\n\nKarl Brandt.\n\n## End"
    )
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "fleet.md").write_text(text)
    (docs / "fleet.html").write_text(re.sub(r"(#+) (.+)", lambda m: f"<h{len(m[1])}>{m[2]}</h{len(m[1])}>", text))
    import_documents(None, docs, tmp_path / "out")
    [passage] = read_passages(tmp_path / "out")  # of both files, which are one text
    assert passage.text == "Alma: Captain: Ines Moreau. Built in 1998. Bora: Captain: Karl Brandt. End."
    import_documents(None, docs, tmp_path / "by", chunk="headings")
    assert {(p.title, p.text) for p in read_passages(tmp_path / "by")} == {
        ("Fleet: Alma: Captain", "Ines Moreau."),
        ("Fleet: Alma", "Built in 1998."),
        ("Fleet: Bora: Captain", "Karl Brandt."),
        ("Fleet", "End."),
    }


def test_a_heading_may_hold_what_begins_a_line():
    html = '<h1 align="center"><br><div>Al<b>ma</b></div></h1><p>Built.</p><h2><p>Crew</p></h2><p>Ines.</p>'
    outline = of_html(html)
    assert outline.title == "Alma"
    assert [(section.headings, section.text) for section in outline.sections] == [((), "Built."), (("Crew",), "Ines.")]


def test_html_in_markdown_is_read_to_its_end_and_keeps_words_apart():
    text = (
        "# Pump\n\n<details>\n<summary>Warranty</summary>\nIt lasts two years.\n</details>\n\n<div>\nIt weighs 12 kg."
    )
    [section] = of_markdown(text).sections
    assert "Warranty" in section.text
    assert "It lasts two years." in section.text
    assert "It weighs 12 kg." in section.text
    [table] = of_markdown("| a |\n|---|\n| first<br>second |\n").sections
    assert "first second" in table.text


def test_a_folder_that_cannot_be_read_is_counted_and_a_hidden_one_left_alone(tmp_path: Path, docs: Path, monkeypatch):
    scan = os.scandir
    for name in ("shut", ".git"):
        (docs / name).mkdir()

    def refusing(path: str) -> object:
        if Path(path).name in ("shut", ".git"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    made = import_documents(None, docs, tmp_path / "made", chunk="words:50")
    assert made.left_out["folders that cannot be read"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are Unicode")
def test_a_file_whose_name_is_no_unicode_is_read(tmp_path: Path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / os.fsdecode(b"caf\xe9_plan.txt")).write_text("Opened in 1998.")
    made = import_documents(None, docs, tmp_path / "made", chunk="words:50")
    assert [passage.title for passage in read_passages(made.folder)] == ["caf\ufffd plan"]


def test_what_unfolds_and_what_hyphenates_leave_words_whole():
    page = "<details><summary>When?</summary>In 1998.</details><details><summary>Whose light&shy;house?</summary>Ines's"
    [section] = of_html(page).sections
    assert section.text == "When?\nIn 1998.\nWhose lighthouse?\nInes's"


def test_a_document_of_many_short_lines_is_divided_in_time_that_grows_with_them(tmp_path: Path):
    (tmp_path / "words.txt").write_text("ab\n\n" * 50_000)
    start = time.process_time()
    import_documents(None, tmp_path, tmp_path / "made", chunk="words:1000")
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        ("<tr><th>Route</th><th>Fare</th></tr><tr><td>Oslo<br>Moss<td><p>5</p><p>kr", ["Route: Oslo Moss; Fare: 5 kr"]),
        ("<tr><th>Built</th><td>1998</td></tr><tr><th>Port</th><td>Oslo</td></tr>", ["Port; Oslo"]),
        ("<tr><th>A<th>B</tr><tr><td rowspan=2>1<td>2</tr><tr><td>3</tr>", ["1; 2", "3"]),
        ("<tr><th>A<th colspan=2>B</tr><tr><td>1<td>2<td>3</tr>", ["1; 2; 3"]),
        ("<tr><td><p>one</p><p>two</p></td></tr>", ["one", "two"]),
    ],
)
def test_cells_of_html_stand_after_the_names_of_their_columns_where_these_are_sure(table: str, lines: list[str]):
    [section] = of_html(f"<table>{table}</table>").sections
    assert section.text.split("\n")[-len(lines) :] == lines


def test_a_comment_without_an_end_goes_to_the_end_of_the_page():
    start = time.process_time()
    [section] = of_html(f"<p>Built in 1998.</p>{'<!-- menu <p>Ports</p>' * 10_000}").sections
    assert section.text == "Built in 1998."
    assert time.process_time() - start < 1
    [section] = of_html("<script>x = '<!--'</script><p>Built in 1998.</p><!-- menu --> by Bo").sections
    assert section.text == "Built in 1998.\nby Bo"


def test_what_is_no_declaration_in_html_is_a_comment():
    [section] = of_html("<p>Built<![a](b)]> in <![if !vml]>1998.<![endif]></p>").sections
    assert section.text == "Built in 1998."


def test_html_becomes_what_a_browser_shows():
    outline = of_html(HTML)
    assert outline.title == "Ports & more"
    assert [(section.headings, section.text) for section in outline.sections] == [(("Oslo",), "A port\nin the east.")]


def test_a_table_and_a_folder_become_a_data_set(docs: Path, table: Path, tmp_path: Path, capsys, monkeypatch):
    out = tmp_path / "made"
    words = ["data", "import", str(table), "--docs", str(docs), "--chunk", "sentences:2", "--out", str(out), "--json"]
    monkeypatch.setattr("sys.argv", ["hop", *words])
    with pytest.raises(SystemExit, match="0"):
        main()
    made = json.loads(capsys.readouterr().out)
    assert made["splits"] == {"train": 8, "dev": 1, "test": 1}
    assert (made["documents"], made["left_out"]) == (3, {".png": 1})
    data = load(str(out))
    assert {passage.title for passage in data.corpus} == {"The Alma", "Ports & more", "dog rules"}
    answers = {question.question: question.answers for split in data.splits.values() for question in split}
    assert answers["Who is captain?"] == ["Ines Moreau", "Moreau"]
    assert answers["What is the number 7?"] == ["7"]
    assert check(out).problems == []


def test_passages_end_at_headings_and_have_them_in_their_titles(docs: Path, tmp_path: Path):
    import_documents(None, docs, tmp_path / "made", chunk="headings")
    rows = [json.loads(line) for line in (tmp_path / "made" / "corpus.jsonl").read_text().splitlines()]
    assert ("The Alma: Crew", "Ines Moreau, captain. ship: Alma; built: 1998. # no heading.") in [
        (row["title"], row["text"]) for row in rows
    ]


def test_chunks_overlap():
    text = "It rains. It pours. It stops."
    assert make_chunker("sentences:2", 1)(text) == ["It rains. It pours.", "It pours. It stops."]
    assert make_chunker("words:3", 2)("a b c d") == ["a b c", "b c d"]
    assert make_chunker("8", 4)(text) == ["It rains. It pours.", "It pours. It stops."]
    long = "See https://example.com/" + "/".join(f"part{n}" for n in range(80)) + " for it."
    assert "".join(make_chunker("tokens:128")(long)).replace(" ", "") == long.replace(" ", "")
    assert len(make_chunker("tokens:128", 32)(long)) < 10, "a word that is longer than a chunk comes to an end"
    assert make_chunker("tokens:4", 1)("one two three four five six") == ["one two three four", "four five six"]
    assert make_chunker("3")("one two three four five. six") == ["one two three", "four five.", "six"]
    assert_one_line(lambda: make_chunker("words:3", 3), ["--overlap"])
    assert_one_line(lambda: make_chunker("0"), ["--chunk '0': expected a whole number above 0, such as 200"])
    assert_one_line(lambda: make_chunker("words"), ["--chunk 'words': expected a whole number above 0, such as words:"])


def test_pdf_and_docx_are_converted(tmp_path: Path):
    (tmp_path / "a.pdf").write_bytes(pdf("The Alma was built in 1998.", "She sails to Oslo."))
    (tmp_path / "b.docx").write_bytes(docx("Dogs stay on deck."))
    assert read_document(tmp_path / "a.pdf").sections[0].text == "The Alma was built in 1998.\nShe sails to Oslo."
    assert read_document(tmp_path / "b.docx").sections[0].text == "Dogs stay on deck."


ENCRYPTED = f"/ID [<00><00>] /Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <{'00' * 32}> /U <{'00' * 32}> >>"


@pytest.mark.parametrize("kind", ["pdf", "docx"])
def test_what_looks_like_markdown_in_other_documents_is_text(kind: str, tmp_path: Path):
    path, lines = tmp_path / f"a.{kind}", ["---", "vector<string> names in __init__", "---", "[Alma]: 1998"]
    path.write_bytes(pdf(*lines) if kind == "pdf" else docx("vector&lt;string&gt; names. [Alma]: 1998"))
    shown = " ".join(section.text for section in read_document(path).sections)
    assert "vector<string> names" in shown
    assert "[Alma]: 1998" in shown
    if kind == "pdf":
        assert "__init__" in shown


def test_words_that_the_lines_of_a_pdf_divide_are_whole(tmp_path: Path):
    lines = ["A multi-", "hop question needs infor-", "mation of 1998-", "2001, state-of-", "the-art work by Anne-"]
    file = tmp_path / "multi.pdf"
    file.write_bytes(pdf(*lines, "Marie. A multi-hop question - or Q-", "learning."))
    text = " ".join(" ".join(section.text.split()) for section in read_document(file).sections)
    assert text == (
        "A multi-hop question needs information of 1998- 2001, state-of-the-art work by Anne- Marie. "
        "A multi-hop question - or Q- learning."
    )


def test_a_page_of_the_web_is_read_without_what_surrounds_its_text():
    around = "<header><h1>Fjordlight</h1></header><nav><h2>Menu</h2><ul><li>Ports</ul></nav>"
    article = "<main><header><h1>Alma</h1></header>Built in 1998.<aside>By Bo.</aside><nav>Top</nav></main>"
    page = of_html(f"<body>{around}{article}<aside><article>See Bora</article></aside><footer>2024</footer>")
    assert (page.title, [section.text for section in page.sections]) == ("Alma", ["Built in 1998.\nBy Bo.\nTop"])
    plain = of_html(f"<body>{around}<p>Built in 1998.</p><aside>By Bo.</aside><footer>2024</footer>")
    assert plain.title == "Fjordlight"
    assert [section.text for section in plain.sections] == ["Built in 1998.\nBy Bo.\n2024"]
    [index] = of_html("<nav>Alma<br>Bora</nav>").sections
    assert index.text == "Alma\nBora"


def test_links_out_of_the_folder_are_counted(tmp_path: Path, docs: Path):
    real = tmp_path / "real"
    real.mkdir()
    (real / "far.md").write_text("# Far\n\nAway.")
    (docs / "far.md").symlink_to(real / "far.md")
    (docs / "manual").symlink_to(real)
    made = import_documents(None, docs, tmp_path / "out")
    assert made.left_out["links out of the folder"] == 2
    for path in docs.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.unlink()
    with pytest.raises(UserError, match=r"no documents in it; .* found links out of the folder 2"):
        import_documents(None, docs, tmp_path / "b")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("scan.pdf", pdf(), "no text in it"),
        ("locked.pdf", pdf("Secret.", trailer=ENCRYPTED), "encrypted"),
        ("broken.pdf", b"%PDF-1.4 and no more", "cannot be converted"),
        ("broken.docx", b"no archive", "no DOCX file"),
        ("half.docx", docx("Dogs.")[:200], "no DOCX file"),
        ("empty.md", b"", "no text in it"),
        ("latin.txt", "Bjørn".encode("latin-1"), "not UTF-8"),
        ("huge.txt", b"x" * 20_000_001, "20 MB"),
    ],
)
def test_a_bad_document_is_one_line_or_is_skipped(name: str, content: bytes, said: str, docs: Path, tmp_path: Path):
    (docs / name).write_bytes(content)
    out = tmp_path / "made"
    assert_one_line(lambda: import_documents(None, docs, out, chunk="words:50"), [name, said])
    assert not out.exists()
    made = import_documents(None, docs, out, chunk="words:50", skip_bad=True)
    assert (made.documents, made.skipped) == (3, 1)
    assert said in made.reasons[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Frage,Antwort\nWo?,Hier\n", ["no column 'question'", "'Frage', 'Antwort'", "--question-column"]),
        ("question,answer\nWhere?,\n", ["no column 'answer' among those with something in them, 'question'"]),
        ("question,reply\nWhere?,Here\n", ["no column 'answer'", "--answer-column"]),
        ("question,answer\nWhere?,Here\nWho?,\n", ["questions.csv:3", "'answer' must be an answer", "--skip-bad"]),
        ("question,answer\nWhere?,Here\n,There\n", ["questions.csv:3", "'question' must be a question"]),
        ("question,answer\n", ["no questions in it"]),
        ("question,answer\nWhere?,\"['Here' 'There']\"\n", ["questions.csv:2", "a list with commas between"]),
        ('question,answer\nWhere?,"[\'Here"\n', ["questions.csv:2", "a list with commas between"]),
        ("question,answer\nWhere?,{'text': array(['Here'])}\n", ["questions.csv:2", "a list with commas between"]),
        ('question,answer\nWhere?,"{""said"": ""Here""}"\n', ["questions.csv:2", "'answer' must be an answer"]),
        ('question,answer\nWhere?,"[""Here"", [""There""]]"\n', ["questions.csv:2", "a list of texts"]),
    ],
)
def test_a_bad_table_is_one_line(text: str, said: list[str], tmp_path: Path):
    (tmp_path / "questions.csv").write_text(text)
    assert_one_line(lambda: import_documents({"dev": tmp_path / "questions.csv"}, None, tmp_path / "made"), said)


@pytest.mark.parametrize(
    "words", [["book.xlsx"], ["book.xlsx", "--docs", "."], ["dev=book.XLS"], ["hotpotqa", "book.xls"]]
)
def test_a_file_of_excel_is_to_be_saved_as_csv(words: list[str], tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alma.md").write_text("Built in 1998.")
    for name in ("book.xlsx", "book.xls", "book.XLS"):
        (tmp_path / name).write_bytes(b"PK\x03\x04\xff\xfe")
    monkeypatch.setattr("sys.argv", ["hop", "data", "import", *words, "--out", "made"])
    with pytest.raises(SystemExit, match="2"):
        main()
    said = capsys.readouterr().err.strip()
    assert "an Excel file, which is not read; save it as CSV" in said
    assert "book." in said
    assert "\n" not in said


def test_tables_as_other_programs_write_them_are_read(tmp_path: Path):
    written = {
        "pandas.csv": "question,answer\nWhere?,\"['Here', 'There', 7]\"\nWhat?,[sic] a stone\n",
        "excel.CSV": "question;answer\nWhere?;Here\nWho?;I, you\n",
        "tabs.csv": "question\tanswer\nWhere?\tHere\n",
        "said.csv": "\ufeffsep=;\r\nquestion;answer\r\nWhere?;Here\r\n",
        "comma.csv": '\nquestion;answer;found on, page;"by; whom"\nWhere?;Here;3;me\n',
        "emptied.csv": "question,answer,,\n,,,\nWhere?,Here,,\n,,,\n",
        "squad.jsonl": '{"question": "Where?", "answers": {"text": ["Here", "There"], "answer_start": [3, 9]}}',
        "squad.csv": "question,answers\nWhere?,\"{'text': ['Here'], 'answer_start': [3]}\"\nWhat?,{x}\n"
        'Who?,"{""text"": [""I"", ""you""], ""answer_start"": []}"\n',
        "long.csv": f"question,answer,page\nWhere?,Here,{'x' * 200_000}\n",
    }
    read = {}
    for name, text in written.items():
        (tmp_path / name).write_text(text)
        assert is_table(name)
        rows = read_rows(tmp_path / name, lists=())
        read[name] = [question.answers for question in read_table(rows, name, fail)]
    assert read == {
        "pandas.csv": [["Here", "There", "7"], ["[sic] a stone"]],
        "excel.CSV": [["Here"], ["I, you"]],
        "tabs.csv": [["Here"]],
        "said.csv": [["Here"]],
        "comma.csv": [["Here"]],
        "emptied.csv": [["Here"]],
        "squad.jsonl": [["Here", "There"]],
        "squad.csv": [["Here"], ["{x}"], ["I", "you"]],
        "long.csv": [["Here"]],
    }


def test_days_and_decimals_of_a_database_are_answers(tmp_path: Path):
    rows = {"question": ["When?", "How much?"], "answer": [date(1998, 5, 1), None], "price": [None, Decimal("1.50")]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "base.parquet")

    def answers(column: str) -> list[str]:
        skipped: list[str] = []
        rows = read_rows(tmp_path / "base.parquet", lists=())
        return [answer for one in read_table(rows, "base", skipped.append, answer=column) for answer in one.answers]

    assert answers("answer") == ["1998-05-01"]
    assert answers("price") == ["1.50"]


def test_the_same_question_in_another_case_stays_in_one_split():
    texts = [f"{question}{mark}" for question in map(str, range(20)) for mark in ("?", " ?")]
    questions = [Question(id=text, question=f"Who is {text}", answers=["I"]) for text in texts]
    for seed in range(5):
        splits = divide(questions, {"train": 0.5, "dev": 0.25, "test": 0.25}, seed)
        where = {question.id: split for split, some in splits.items() for question in some}
        assert len(where) == 40
        assert all(where[f"{number}?"] == where[f"{number} ?"] for number in range(20))


def test_columns_are_named_and_rows_of_one_question_are_one(tmp_path: Path):
    rows = [
        {"Frage": "Wo?", "Antwort": 12},
        {"Frage": "Wo?", "Antwort": ["zwölf", 12.0]},
        {"Frage": "Ja?", "Antwort": True},
    ]
    (tmp_path / "fragen.jsonl").write_text("\n".join(json.dumps(row) for row in [*rows, {"Frage": "Und?"}]))
    made = import_documents(
        {"dev": tmp_path / "fragen.jsonl"},
        None,
        tmp_path / "made",
        question="Frage",
        answer="Antwort",
        skip_bad=True,
    )
    assert made.skipped == 1
    assert [question.answers for question in load(str(tmp_path / "made")).split("dev")] == [["12", "zwölf"], ["yes"]]


@pytest.mark.parametrize(
    ("splits", "sizes", "said"),
    [
        (["dev", "dev+test"], {}, ["'dev' is given twice"]),
        (["train", "dev"], {"test": 2}, ["name 'test', for which no file is given"]),
        (["train", "contexts"], {}, ["'contexts'"]),
    ],
)
def test_splits_and_sizes_that_do_not_fit_are_said_before_anything_is_read(splits, sizes, said, tmp_path: Path):
    table = dict.fromkeys(splits, tmp_path / "not-there.csv")
    assert_one_line(lambda: import_documents(table, None, tmp_path / "made", sizes=sizes), said)


def test_a_question_in_two_splits_is_said(table: Path, tmp_path: Path):
    twice = {"train": table, "dev": table}
    assert_one_line(lambda: import_documents(twice, None, tmp_path / "made"), ["stands in"])
    assert_one_line(
        lambda: import_documents(twice, None, tmp_path / "made", skip_bad=True), ["no question in it that stands in no"]
    )
    assert not (tmp_path / "made").exists()


def test_a_hub_data_set_with_any_columns_is_a_table(tmp_path: Path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"prompt": "Where?", "target": "Here"}\n')
    (folder / "validation.jsonl").write_text('{"prompt": "Who?", "target": "Me"}\n')
    made = import_documents(f"hub:{folder}", None, tmp_path / "made")
    assert made.splits == {"train": 1, "dev": 1}


@pytest.mark.usefixtures("checkpoint")
def test_a_check_says_so_where_it_can_not_tell_lengths(tmp_path: Path, monkeypatch):
    folder = tmp_path / "set"
    import_documents(None, Path(__file__).parents[1] / "examples" / "handbook", folder)
    told = "the lengths of passages were not checked"
    assert not any(told in warning for warning in check(folder).warnings)
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "fresh"))
    assert any(told in warning for warning in check(folder).warnings)


def test_a_check_warns_of_what_spoils_scores(checkpoint: Path):
    long = Passage("long", "Alma", "The ferry sails on. " * 80)
    corpus = Corpus([long, Passage("short", "Oslo", "Oslo is a port.")])

    def asked(id: str, text: str, answer: str) -> Question:
        return Question(id=id, question=text, answers=[answer])

    splits = {
        "train": [asked("1", "Is Oslo a port?", "yes"), asked("2", "What is Oslo?", "a port")],
        "dev": [asked("3", "What is OSLO", "port"), asked("4", "Who sails?", "Ines Moreau")],
    }
    leaked, nowhere, cut = find_warnings(corpus, splits, checkpoint)
    assert "1 questions stand in two splits" in leaked
    assert "2 of train and 3 of dev" in leaked
    assert "dev: the answers of 1 of 2 questions stand in no passage" in nowhere
    assert "1 of 2 passages are longer than the 256 tokens" in cut
    assert "long: 405" in cut
    assert find_warnings(corpus, {"dev": splits["dev"][:1]}) == []


def test_long_answers_are_looked_for_in_little_time():
    words = [f"w{number}" for number in range(200)]
    corpus = Corpus([Passage(f"{number}", "", " ".join([f"p{number}", *words])) for number in range(300)])
    answers = [" ".join(words[-length:]) for length in range(1, 200)]
    asked = [Question(id=str(n), question=f"Which {n}?", answers=[answer]) for n, answer in enumerate(answers)]
    missing = Question(id="not", question="Which not?", answers=[" ".join([*words, "w200"])])
    start = time.process_time()
    [warning] = find_warnings(corpus, {"dev": [*asked, missing]})
    assert "1 of 200 questions stand in no passage (not)" in warning
    assert time.process_time() - start < 3


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_checkpoint_is_one_line(tmp_path: Path, text: str):
    (tmp_path / "artifact.metadata").write_text(text)
    with pytest.raises(UserError, match=r"artifact\.metadata: "):
        read_at_most(tmp_path)


def test_a_corpus_of_the_default_chunks_is_read_whole(tmp_path: Path, checkpoint: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "long.md").write_text("# A long one\n\n" + "The ferry Alma sails on Mondays. " * 300)
    import_documents(None, tmp_path / "docs", tmp_path / "made", overlap=20)
    corpus = read_passages(tmp_path / "made")
    assert len(corpus) > 10
    assert find_warnings(corpus, {}, checkpoint) == []


def test_three_commands_lead_from_the_example_to_compared_variants(tmp_path: Path, monkeypatch, capsys):
    """The page runs the same in a nightly test, with more questions."""
    start = time.monotonic()
    monkeypatch.chdir(tmp_path)
    examples = Path(__file__).parents[1] / "examples"
    table, docs = str(examples / "handbook-questions.csv"), str(examples / "handbook")
    study = {
        "base": {"data": {"name": "my-data", "train": 2, "test": 2, "dev": 1}, "retriever": "bm25"}
        | {"lm": {"default": {"model": "local/smollm2-135m-instruct", "max_tokens": 12}}}
        | {"optimizer": {"name": "labeled_few_shot", "prompt_formats": []}},
        "split": "test",
        "cells": [
            {"name": "direct", "program": "direct"},
            {"name": "rag", "program": "rag"},
            {"name": "rag, compiled", "program": "rag", "compile": True},
        ],
        "rows": "name",
        "figures": ["em", "f1", "lm_calls"],
    }
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    for words in (
        ["data", "import", table, "--docs", docs, "--chunk", "200", "--out", "my-data"],
        ["data", "check", "my-data"],
        ["study", "study.yaml"],
    ):
        monkeypatch.setattr("sys.argv", ["hop", *words])
        with pytest.raises(SystemExit, match="0"):
            main()
    assert time.monotonic() - start < 600
    shown = capsys.readouterr().out
    assert "20 passages of 20 documents" in shown
    assert "warning" not in shown
    assert "study on test, n = 2" in shown
    calls = dict(re.findall(r"^(direct|rag|rag, compiled)  .*  (\d\.\d\d)$", shown, re.MULTILINE))
    assert calls == dict.fromkeys(("direct", "rag", "rag, compiled"), "1.00")
