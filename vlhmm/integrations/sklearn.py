"""A scikit-learn estimator with the names of hmmlearn's `CategoricalHMM`, on the exact inference of vlhmm.

Needs scikit-learn: `pip install "vlhmm[sklearn]"`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vlhmm.arguments import check_count, check_number, is_integer
from vlhmm.integrations.categorical import (
    Array,
    ColumnHMM,
    ConvergenceMonitor,
    chunks,
    cuts_of,
    drawn_sequence,
    maximized,
    refuse_lengths_as_y,
)

try:
    from sklearn.base import BaseEstimator, DensityMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "vlhmm.integrations.sklearn needs scikit-learn 1.6 or later: pip install 'vlhmm[sklearn]'"
    ) from error

ALGORITHMS = ("viterbi", "map")


class CategoricalHMM(DensityMixin, BaseEstimator):  # type: ignore[misc]
    """A hidden Markov model of symbols, as a scikit-learn estimator with the names of hmmlearn.

    X has a row for each position. Its one column holds symbols 0, 1, ...; several columns are symbols that are
    independent given the state. `lengths` says how X is cut into sequences; without it all of X is one. As in scikit-learn, but
    other than in hmmlearn, the second argument of `fit` and `score` is `y`, which is ignored: give `lengths` by name.

    Args:
        n_components: Number of states.
        startprob_prior: Concentration of the Dirichlet prior of `startprob_`, a number or an array of its shape.
        transmat_prior: The same of each row of `transmat_`.
        emissionprob_prior: The same of each row of `emissionprob_`.
        n_features: Number of symbols; None: the largest one of the data + 1.
        algorithm: What `decode` and `predict` find: "viterbi", the most likely path, or "map", the most likely state at each
            position.
        random_state: A number or a `numpy.random.RandomState`.
        n_iter: Iterations at most.
        tol: Gain of log p below which fitting ends.
        verbose: Print each iteration to the standard error stream.
        params: What is fitted: letters of s (startprob), t (transmat), e (emissionprob).
        init_params: What `fit` draws at random before; what else is set already stays.
        implementation: "log" or "scaling", as hmmlearn has them. Both are the same here.
        device: Where it is computed.

    Attributes:
        startprob_: p(z_1), (n_components,).
        transmat_: p(z' | z), (n_components, n_components).
        emissionprob_: p(x | z), (n_components, n_features); for several columns (columns, n_components, n_features).
        monitor_: The progress of the fit.

    Example:
        >>> from vlhmm.integrations.sklearn import CategoricalHMM
        >>> model = CategoricalHMM(n_components=2, random_state=0, n_iter=20)
        >>> X = [[0], [1], [2], [2], [0], [1]]
        >>> model.fit(X, lengths=[4, 2]).predict(X, lengths=[4, 2]).shape
        (6,)
        >>> round(model.score(X, lengths=[4, 2]), 2) > -6
        True
    """

    def __init__(
        self,
        n_components: Any = 1,
        startprob_prior: Any = 1.0,
        transmat_prior: Any = 1.0,
        *,
        emissionprob_prior: Any = 1.0,
        n_features: Any = None,
        algorithm: Any = "viterbi",
        random_state: Any = None,
        n_iter: Any = 10,
        tol: Any = 1e-2,
        verbose: Any = False,
        params: Any = "ste",
        init_params: Any = "ste",
        implementation: Any = "log",
        device: Any = "cpu",
    ) -> None:
        # As scikit-learn asks, what is given is kept as it is, and checked in `fit`.
        self.n_components = n_components
        self.startprob_prior = startprob_prior
        self.transmat_prior = transmat_prior
        self.emissionprob_prior = emissionprob_prior
        self.n_features = n_features
        self.algorithm = algorithm
        self.random_state = random_state
        self.n_iter = n_iter
        self.tol = tol
        self.verbose = verbose
        self.params = params
        self.init_params = init_params
        self.implementation = implementation
        self.device = device

    def fit(self, X: Any, y: Any = None, lengths: Any = None) -> CategoricalHMM:
        """Fit by Baum-Welch.

        Args:
            X: Symbols (samples, 1), or (samples, columns).
            y: Ignored.
            lengths: Length of each sequence; they sum to the number of samples. None: one sequence.

        Returns:
            This estimator.

        Raises:
            ValueError: X, lengths or a setting is not what it should be.
        """
        self._check_settings()
        X = self._samples(X, reset=True)
        refuse_lengths_as_y(y, lengths, len(X))
        cuts = cuts_of(lengths, len(X))
        self._begin(X)
        self._check()
        self.monitor_ = ConvergenceMonitor(float(self.tol), int(self.n_iter), bool(self.verbose))
        for _ in range(self.n_iter):
            log_prob = self._step(X, cuts)
            self.monitor_.report(log_prob)
            if self.monitor_.converged:
                break
        return self

    def score(self, X: Any, y: Any = None, lengths: Any = None) -> float:
        """Compute log p(X).

        Args:
            X: Symbols (samples, 1), or (samples, columns).
            y: Ignored.
            lengths: Length of each sequence; None: one sequence.

        Returns:
            log p, summed over sequences.
        """
        X, cuts = self._asked(X, lengths, y)
        model = self._model()
        return sum(float(model.hmm.log_prob(**model.question(part)).sum()) for _, part in chunks(X, cuts))

    def score_samples(self, X: Any, lengths: Any = None) -> tuple[float, Array]:
        """Compute log p(X) and the posterior of the states.

        Args:
            X: Symbols (samples, 1), or (samples, columns).
            lengths: Length of each sequence; None: one sequence.

        Returns:
            log p, and p(z_t | X), (samples, n_components).
        """
        return self.score(X, lengths=lengths), self.predict_proba(X, lengths)

    def predict_proba(self, X: Any, lengths: Any = None) -> Array:
        """Compute the posterior of the states.

        Args:
            X: Symbols (samples, 1), or (samples, columns).
            lengths: Length of each sequence; None: one sequence.

        Returns:
            p(z_t | X), (samples, n_components).
        """
        X, cuts = self._asked(X, lengths)
        model, posteriors = self._model(), np.empty((len(X), self.n_components))
        for places, part in chunks(X, cuts):
            probs = model.hmm.posterior(**model.question(part)).probs.cpu().numpy()
            for place, row in zip(places, probs, strict=True):
                posteriors[place] = row[: place.stop - place.start]
        return posteriors

    def decode(self, X: Any, lengths: Any = None, algorithm: str | None = None) -> tuple[float, Array]:
        """Find the most likely states.

        Args:
            X: Symbols (samples, 1), or (samples, columns).
            lengths: Length of each sequence; None: one sequence.
            algorithm: "viterbi" or "map"; None: that of the estimator.

        Returns:
            Of "viterbi" log p(X, path), of "map", as in hmmlearn, the sum of the largest posteriors; and the states (samples,).
        """
        algorithm = algorithm or self.algorithm
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm is {algorithm!r}, but must be one of {', '.join(ALGORITHMS)}")
        if algorithm == "map":
            posteriors = self.predict_proba(X, lengths)
            return float(posteriors.max(axis=1).sum()), posteriors.argmax(axis=1)
        X, cuts = self._asked(X, lengths)
        model, states, total = self._model(), np.empty(len(X), dtype=np.int64), 0.0
        for places, part in chunks(X, cuts):
            paths = model.hmm.viterbi(**model.question(part))
            total += float(paths.log_prob.sum())
            for place, row in zip(places, paths.states[:, 0].cpu().numpy(), strict=True):
                states[place] = row[: place.stop - place.start]
        return total, states

    def predict(self, X: Any, lengths: Any = None) -> Array:
        """Find the most likely states.

        Args:
            X: Symbols (samples, 1), or (samples, columns).
            lengths: Length of each sequence; None: one sequence.

        Returns:
            The states (samples,).
        """
        return self.decode(X, lengths)[1]

    def sample(self, n_samples: Any = 1, random_state: Any = None, currstate: Any = None) -> tuple[Array, Array]:
        """Draw one sequence.

        Args:
            n_samples: Its length.
            random_state: A number or a `numpy.random.RandomState`; None: that of the estimator.
            currstate: Its first state; None: drawn from `startprob_`.

        Returns:
            Symbols (n_samples, columns) and states (n_samples,).
        """
        check_is_fitted(self, "startprob_")
        self._check()
        check_count("n_samples", n_samples)
        if currstate is not None and (not is_integer(currstate) or not 0 <= currstate < self.n_components):
            raise ValueError(f"currstate is {currstate!r}, but states are 0 to {self.n_components - 1}")
        random = check_random_state(self.random_state if random_state is None else random_state)
        return drawn_sequence(self.startprob_, self.transmat_, self._columns(), n_samples, currstate, random)

    def aic(self, X: Any, lengths: Any = None) -> float:
        """Akaike's criterion of X: smaller is better.

        Args:
            X: Symbols (samples, 1), or (samples, columns).
            lengths: Length of each sequence; None: one sequence.

        Returns:
            2 parameters - 2 log p.
        """
        return 2 * self._num_parameters() - 2 * self.score(X, lengths=lengths)

    def bic(self, X: Any, lengths: Any = None) -> float:
        """The Bayesian criterion of X: smaller is better.

        Args:
            X: Symbols (samples, 1), or (samples, columns).
            lengths: Length of each sequence; None: one sequence.

        Returns:
            parameters log(samples) - 2 log p.
        """
        return self._num_parameters() * math.log(len(X)) - 2 * self.score(X, lengths=lengths)

    @property
    def n_features(self) -> Any:
        """Number of symbols: as given, else that of the fitted emission."""
        given = self.__dict__["n_features"]
        if given is None and "emissionprob_" in self.__dict__ and np.ndim(self.emissionprob_) >= 2:
            return int(np.shape(self.emissionprob_)[-1])
        return given

    @n_features.setter
    def n_features(self, n_features: Any) -> None:
        self.__dict__["n_features"] = n_features

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor.

        Args:
            deep: As in scikit-learn; nothing here has arguments of its own.

        Returns:
            The arguments by name; `n_features` as it was given, so that a copy can be fitted to other symbols.
        """
        return {**super().get_params(deep), "n_features": self.__dict__["n_features"]}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.positive_only = True
        return tags

    def _check_settings(self) -> None:
        check_count("n_components", self.n_components)
        check_count("n_iter", self.n_iter)
        check_number("tol", self.tol)
        if self.__dict__["n_features"] is not None:
            check_count("n_features", self.__dict__["n_features"])
        for name in ("params", "init_params"):
            letters = getattr(self, name)
            if not isinstance(letters, str) or not set(letters) <= set("ste"):
                raise ValueError(f"{name} is {letters!r}, but must be letters of 'ste'")
        if self.implementation not in ("log", "scaling"):
            raise ValueError(f"implementation is {self.implementation!r}, but must be 'log' or 'scaling'")

    def _samples(self, X: Any, reset: bool = False) -> Array:
        X = validate_data(self, X, reset=reset)
        if not np.issubdtype(X.dtype, np.integer) and (np.round(X) != X).any():
            raise ValueError(
                f"X has {X[np.round(X) != X][0]}, but symbols are integers: sklearn.preprocessing.OrdinalEncoder makes them of others"
            )
        symbols: Array = X.astype(np.int64)
        if symbols.min() < 0:
            raise ValueError(
                f"Negative values in data passed to {type(self).__name__}: X has {symbols.min()}, but symbols are 0, 1, ..."
            )
        if self.n_features is not None and not reset and symbols.max() >= self.n_features:
            raise ValueError(
                f"X has symbol {symbols.max()}, but the model has {self.n_features}: 0 to {self.n_features - 1}"
            )
        return symbols

    def _asked(self, X: Any, lengths: Any, y: Any = None) -> tuple[Array, Array]:
        check_is_fitted(self, "startprob_")
        self._check()
        X = self._samples(X)
        refuse_lengths_as_y(y, lengths, len(X))
        if X.shape[1] != len(self._columns()):
            raise ValueError(f"X has {X.shape[1]} columns, but emissionprob_ is of {len(self._columns())}")
        return X, cuts_of(lengths, len(X))

    def _begin(self, X: Array) -> None:
        """What `init_params` names, or what is not set, is drawn."""
        random = check_random_state(self.random_state)
        given = self.__dict__["n_features"]
        states, columns = self.n_components, X.shape[1]
        kept_symbols = None if "e" in self.init_params else getattr(self, "emissionprob_", None)
        symbols = given or (int(X.max()) + 1 if kept_symbols is None else np.shape(kept_symbols)[-1])
        if X.max() >= symbols:
            raise ValueError(f"X has symbol {X.max()}, but n_features is {symbols}: symbols are 0 to {symbols - 1}")
        if "s" in self.init_params or not hasattr(self, "startprob_"):
            self.startprob_ = random.dirichlet(np.ones(states))
        if "t" in self.init_params or not hasattr(self, "transmat_"):
            self.transmat_ = random.dirichlet(np.ones(states), size=states)
        if kept_symbols is None:
            drawn = random.dirichlet(np.ones(symbols), size=(columns, states))
            self.emissionprob_ = drawn[0] if columns == 1 else drawn

    def _check(self) -> None:
        """The parameters, which users may set, are distributions of the right shapes."""
        states = self.n_components
        for name, shape in (("startprob_", (states,)), ("transmat_", (states, states))):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            setattr(self, name, values)
            if values.shape != shape:
                raise ValueError(f"{name} has shape {values.shape}, but {shape} is needed")
        emission = np.asarray(self.emissionprob_, dtype=np.float64)
        if emission.ndim not in (2, 3) or emission.shape[-2] != states or emission.shape[-1] < 1:
            raise ValueError(
                f"emissionprob_ has shape {emission.shape}, but ({states}, symbols) or (columns, {states}, symbols) is needed"
            )
        self.emissionprob_ = emission
        for name in ("startprob_", "transmat_", "emissionprob_"):
            values = getattr(self, name)
            if not (np.isfinite(values).all() and (values >= 0).all() and np.allclose(values.sum(axis=-1), 1)):
                raise ValueError(f"{name} must have rows of probabilities that sum to 1")

    def _columns(self) -> Array:
        """The emission of each column."""
        emission: Array = self.emissionprob_
        return emission[None] if emission.ndim == 2 else emission

    def _model(self) -> ColumnHMM:
        return ColumnHMM.of(self.startprob_, self.transmat_, self._columns(), self.device)

    def _step(self, X: Array, cuts: Array) -> float:
        """One iteration of Baum-Welch; log p before it."""
        start, transition, emission, log_prob = self._model().counts(X, cuts)
        for letter, name, counted, prior in (
            ("s", "startprob_", start, self.startprob_prior),
            ("t", "transmat_", transition, self.transmat_prior),
            ("e", "emissionprob_", emission, self.emissionprob_prior),
        ):
            if letter in self.params:
                old = getattr(self, name)
                setattr(self, name, maximized(counted.cpu().numpy().reshape(old.shape), prior, old, letter != "e"))
        return log_prob

    def _num_parameters(self) -> int:
        """As hmmlearn counts them: of what `params` names."""
        check_is_fitted(self, "startprob_")
        states, columns = self.n_components, self._columns()
        of = {"s": states - 1, "t": states * (states - 1), "e": columns.shape[0] * states * (columns.shape[2] - 1)}
        return sum(of[letter] for letter in set(self.params))
