"""The typed signatures of every step.

A signature's docstring is the instruction that a language model reads, and its fields' descriptions are a part of the
prompt, so that examples stand here:

>>> import dspy
>>> from hoptimizer import signatures
>>> dspy.Predict(signatures.Answer).signature.instructions
'Answer the question from what you know, in as few words as possible.'

Readers answer from memory or from passages, at once or with a chain of thought:

>>> signatures.Answer.signature, signatures.AnswerWithReasoning.signature
('question -> answer', 'question -> reasoning, answer')
>>> signatures.Read.signature, signatures.ReadWithReasoning.signature
('context, question -> answer', 'context, question -> reasoning, answer')

IRCoT asks for the next sentence of a chain of thought, and what must be looked up after it:

>>> signatures.NextThought.signature, signatures.FollowUp.signature
('context, question, known -> next_thought', 'question, facts -> look_up, enough, final_answer')

In the protocol of its paper, a chain of thought is plain text that ends in "So the answer is: ...":

>>> signatures.NextSentence.signature
'context, question, thoughts -> thought'
>>> signatures.AnswerWithChain.signature, signatures.ReadWithChain.signature
('question -> chain', 'context, question -> chain')

Where a question is asked about a page, it also asks for the titles of others:

>>> signatures.ProposeTitles.signature
'page, question, number -> titles'

RA-ISF asks what the model knows and what is relevant, and splits questions up:

>>> signatures.SelfKnowledge.signature
'question -> knows'
>>> signatures.Relevance.signature, signatures.Sufficiency.signature
('passage, question -> relevant', 'retrieved, question -> sufficient')
>>> signatures.Decompose.signature, signatures.DecomposeInOrder.signature
('question -> subquestions', 'question -> ordered_subquestions')
>>> signatures.Combine.signature
'findings, question -> answer'

So do the systems that they are compared with:

>>> signatures.AskFollowUp.signature  # self-ask, one question after the other
'question, answered -> next_question'
>>> signatures.NextTask.signature  # decomposed prompting, with a handler for each
'question, answered -> task_question, task'
>>> signatures.ReadWithFindings.signature  # least-to-most, with the earlier answers in view
'context, findings, question -> answer'
>>> signatures.AnswerWithFindings.signature
'findings, question -> answer'
>>> signatures.FirstQuery.signature, signatures.SearchQuery.signature  # demonstrate-search-predict
('question -> first_query', 'found, question -> search_query')
>>> signatures.AnswerBySearching.signature  # what ReAct's agent is for
'question -> answer'
>>> signatures.Recite.signature, signatures.AnswerFromRecitation.signature
('question -> recited', 'recited, question -> answer')
>>> signatures.Support.signature, signatures.Usefulness.signature  # Self-RAG's critique
('passage, question, candidate -> supported', 'question, candidate -> useful')

EfficientRAG labels what it finds and writes the next query:

>>> signatures.LabelPassage.signature, signatures.NextQuery.signature
('passage, query -> useful, tag', 'query, known -> next_query')

Its training data comes from a teacher, which is asked three things:

>>> signatures.SplitByPassages.signature
'passages, question, answer -> subquestions, answers'
>>> signatures.FindDependencies.signature
'subquestions, subquestion -> after'
>>> signatures.LabelWords.signature
'passage, question, answer -> useful'

A judge of answers is asked this:

>>> signatures.Correctness.signature
'question, right_answers, answer -> correct'
"""

from hoptimizer.signatures.answering import (
    Answer,
    AnswerFromRecitation,
    AnswerWithChain,
    AnswerWithReasoning,
    Read,
    ReadWithChain,
    ReadWithReasoning,
    Recite,
)
from hoptimizer.signatures.decomposing import (
    AnswerWithFindings,
    AskFollowUp,
    Combine,
    Decompose,
    DecomposeInOrder,
    NextTask,
    ReadWithFindings,
)
from hoptimizer.signatures.hopping import LabelPassage, NextQuery
from hoptimizer.signatures.judging import Correctness, Relevance, SelfKnowledge, Sufficiency, Support, Usefulness
from hoptimizer.signatures.reasoning import FollowUp, NextSentence, NextThought
from hoptimizer.signatures.searching import AnswerBySearching, FirstQuery, ProposeTitles, SearchQuery
from hoptimizer.signatures.synthesis import FindDependencies, LabelWords, SplitByPassages

__all__ = [
    "Answer",
    "AnswerBySearching",
    "AnswerFromRecitation",
    "AnswerWithChain",
    "AnswerWithFindings",
    "AnswerWithReasoning",
    "AskFollowUp",
    "Combine",
    "Correctness",
    "Decompose",
    "DecomposeInOrder",
    "FindDependencies",
    "FirstQuery",
    "FollowUp",
    "LabelPassage",
    "LabelWords",
    "NextQuery",
    "NextSentence",
    "NextTask",
    "NextThought",
    "ProposeTitles",
    "Read",
    "ReadWithChain",
    "ReadWithFindings",
    "ReadWithReasoning",
    "Recite",
    "Relevance",
    "SearchQuery",
    "SelfKnowledge",
    "SplitByPassages",
    "Sufficiency",
    "Support",
    "Usefulness",
]
