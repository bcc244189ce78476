"""Whatever goes in: a valid result or a clean error. `benchmarks/fuzz.py` searches for longer than this."""

import pytest
from fuzzing import TARGETS, search


@pytest.mark.parametrize("name", TARGETS)
def test_strange_inputs_end_in_a_result_or_in_one_line(name):
    found = search(TARGETS[name], rounds=1, examples=30)
    assert not found.findings, [(finding.what, finding.given) for finding in found.findings.values()]
    assert found.accepted
    assert found.refused
