"""A metric, in the form that DSPy's optimizers take."""

import dspy


def mentions(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> float:
    """Whether a passage that was found holds an answer."""
    found = " ".join(passage.text for passage in prediction.passages).lower()
    return float(any(answer.lower() in found for answer in example.answers))
