"""The named mutations of `make mutants` still apply: one that no longer does would end the run before any was tried."""

from tests import mutants


def test_each_named_mutation_changes_the_code_as_it_is():
    made = mutants.named()
    assert len(made) == len(mutants.NAMED)
    assert all((mutants.ROOT / m.path).read_text() != m.code for m in made)
