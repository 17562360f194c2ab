"""The tests of hmmlearn for its categorical model, as hmmlearn ships them, run on ours in its place."""

from types import SimpleNamespace

import numpy as np
import pytest

before = np.geterr()
# Its tests ask numpy for all warnings, of every test that follows.
from hmmlearn.tests import test_categorical_hmm as suite  # noqa: E402

np.seterr(**before)

from vlhmm.integrations.sklearn import CategoricalHMM  # noqa: E402


class WithPrivateHooks(CategoricalHMM):
    """Nothing but what these tests call beside the public names; `_check` has the same name in both."""

    def _init(self, X, lengths=None) -> None:
        self._begin(np.asarray(X))

    def _check_and_set_n_features(self, X) -> None:
        if not np.issubdtype(X.dtype, np.integer):
            raise ValueError("hmmlearn refuses floats, even if they are whole numbers")
        self._samples(X, reset=True)


@pytest.fixture(autouse=True)
def _ours_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "hmm", SimpleNamespace(CategoricalHMM=WithPrivateHooks))
    # They draw from the global generator of NumPy.
    np.random.seed(0)  # noqa: NPY002


TestCategoricalAgainstWikipedia = suite.TestCategoricalAgainstWikipedia
TestCategoricalHMM = suite.TestCategoricalHMM
