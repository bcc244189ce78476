"""What of a URL is shown."""

import pytest

from hoptimizer import UserError, load_config
from hoptimizer.common.urls import text_without_secrets, without_secrets
from hoptimizer.retrieval import ColBERTServer, Corpus
from hoptimizer.study.file import label


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/v1", "https://host/v1"),
        ("https://me:word@host:8000/v1", "https://host:8000/v1"),
        ("https://host/v1?api-version=2024-02-01", "https://host/v1?api-version=2024-02-01"),
        ("https://host/v1?api-version=1&api-key=abc", "https://host/v1?api-version=1"),
        ("https://host/v1?token=abc", "https://host/v1"),
        ("postgresql://me:w%40rd@host/db?sslmode=require&password=word", "postgresql://host/db?sslmode=require"),
        ("postgresql://me:pa/ss#w?rd@host/db", "postgresql://host/db"),
        ("postgresql+psycopg://me:pa/ss@host/db", "postgresql+psycopg://host/db"),
        ("mssql+pyodbc:///?odbc_connect=PWD%3Dword", "mssql+pyodbc:/"),
        ("postgresql://host/db?application_name=a@b", "postgresql://host/db?application_name=a@b"),
        ("sqlite:///mlflow.db", "sqlite:///mlflow.db"),
        ("sqlite:////data/mlflow.db", "sqlite:////data/mlflow.db"),
    ],
)
def test_a_url_is_shown_without_passwords_and_keys(url, shown):
    assert without_secrets(url) == shown
    assert text_without_secrets(f"in {url} nothing (404), '{url}'") == f"in {shown} nothing (404), '{shown}'"


def test_a_retrievers_url_is_kept_and_told_without_its_password():
    url = "http://me:word@127.0.0.1:9/api/search"
    config = load_config(None, ["data=atlas", f"retriever.url={url}"])
    assert config.retriever.url == url
    assert "word" not in str(config.public())
    with pytest.raises(UserError, match=r"no answer from http://127.0.0.1:9/api/search") as raised:
        ColBERTServer(url, Corpus([])).search(["Who?"], 1)
    assert "word" not in str(raised.value)


def test_a_studys_table_shows_a_server_without_its_password():
    value = {"model": "openai/x", "api_base": "http://me:word@host/v1"}
    assert label(value) == "openai/x api_base=http://host/v1"
    assert label([value]).count("word") == 0
