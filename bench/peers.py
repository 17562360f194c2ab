"""Other implementations of the same computations, one small class each. A peer's own packages are imported lazily.

What a peer needs from the tables in its own layout is made before the clock starts; the emission lookup is timed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from bench.workloads import Answer, DenseInputs, NotOffered, Timed, Work
from vlhmm.precision import float32_products


class Engine(Protocol):
    @property
    def name(self) -> str: ...

    def timed(self, work: Work, inputs: DenseInputs) -> Timed:
        """Raises `NotOffered` where it does not do that."""
        ...


class Peer(Engine, Protocol):
    @property
    def package(self) -> str | None:
        """What must be installed."""

    @property
    def devices(self) -> tuple[str, ...]: ...

    def reads(self, work: Work, device: torch.device) -> str:
        """What its products read."""
        ...


class PlainLoop:
    """One matrix product a position in plain PyTorch, scaled; the gradient by autograd.

    On a GPU with operands as short as ours: bf16 where nothing needs a gradient, which the product with a float32 result does
    not have, else tf32.
    """

    name = "plain GEMM loop"
    package = None
    devices = ("cpu", "cuda")

    def reads(self, work: Work, device: torch.device) -> str:
        if device.type != "cuda":
            return "float32"
        return "bf16" if work == "W1" else "tf32"

    def timed(self, work: Work, inputs: DenseInputs) -> Timed:
        start, transition, emission = inputs.start, inputs.transition, inputs.emission
        tokens = inputs.tokens
        log_tables = [transition.log().requires_grad_(), emission.log().requires_grad_()]

        def log_prob(start: Tensor, transition: Tensor, emitted: Tensor) -> Tensor:
            message, log_probs = start.expand(tokens.shape[0], -1), []
            for t in range(tokens.shape[1]):
                joint = (_moved(message, transition) if t else message) * emitted[:, t]
                total = joint.sum(1, keepdim=True)
                message = joint / total
                log_probs.append(total.log())
            return torch.cat(log_probs, dim=1).sum(1)

        short = transition.to(torch.bfloat16) if inputs.device.type == "cuda" else transition

        def likelihood() -> Tensor:
            with torch.no_grad():
                return log_prob(start, short, emission[tokens])

        def counts() -> tuple[Tensor, ...]:
            log_transition, log_emission = log_tables
            with float32_products("tf32", inputs.device):
                total = log_prob(start, log_transition.exp(), log_emission[tokens].exp()).sum()
                return torch.autograd.grad(total, log_tables)

        def posterior() -> Tensor:
            log_emitted = emission[tokens].log().requires_grad_()
            with float32_products("tf32", inputs.device):
                total = log_prob(start, transition, log_emitted.exp()).sum()
                return torch.autograd.grad(total, log_emitted)[0]

        match work:
            case "W1":
                return Timed(likelihood, lambda found: {"log_prob": found})
            case "W2":
                return Timed(counts, lambda found: {"transition": found[0], "emission": found[1]})
            case "W5":
                return Timed(posterior, lambda found: {"posterior": found})
            case "W4":
                raise NotOffered("a matrix product takes no maximum")


def _moved(message: Tensor, transition: Tensor) -> Tensor:
    if transition.dtype == torch.bfloat16:
        return torch.mm(message.to(torch.bfloat16), transition, out_dtype=torch.float32)
    return message @ transition


class Dynamax:
    """On a GPU its products read tf32, as ours may."""

    name = "dynamax"
    package = "dynamax"
    devices = ("cpu", "cuda")

    def reads(self, work: Work, device: torch.device) -> str:
        return "tf32" if device.type == "cuda" else "float32"

    def timed(self, work: Work, inputs: DenseInputs) -> Timed:
        # Read at the first import: JAX then does not preallocate device memory, and uses the platform that is set.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        if inputs.device.type == "cpu":
            os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax
        import jax.numpy as jnp
        from dynamax.hidden_markov_model import hmm_filter, hmm_posterior_mode, hmm_two_filter_smoother

        if inputs.device.type == "cuda" and jax.default_backend() != "gpu":
            raise NotOffered("its JAX sees no GPU")
        jax.config.update("jax_default_matmul_precision", "tensorfloat32" if inputs.device.type == "cuda" else None)
        start, transition, log_emission, tokens = (
            jnp.asarray(table.cpu().numpy())
            for table in (inputs.start, inputs.transition, inputs.emission.log(), inputs.tokens.int())
        )

        def over_batch(one: Any) -> Any:
            return jax.vmap(one, in_axes=(None, None, 0))

        log_prob = over_batch(lambda start, moves, emitted: hmm_filter(start, moves, emitted).marginal_loglik)
        smoothed = over_batch(
            # The compiler eliminates computations whose results are not used (dead code).
            lambda start, moves, emitted: hmm_two_filter_smoother(start, moves, emitted).smoothed_probs
        )

        def total(log_transition: Any, log_emission: Any, start: Any, tokens: Any) -> Any:
            return log_prob(start, jnp.exp(log_transition), log_emission[tokens]).sum()

        likelihood = jax.jit(lambda start, moves, table, tokens: log_prob(start, moves, table[tokens]))
        posterior = jax.jit(lambda start, moves, table, tokens: smoothed(start, moves, table[tokens]))
        path = jax.jit(lambda start, moves, table, tokens: over_batch(hmm_posterior_mode)(start, moves, table[tokens]))
        gradient = jax.jit(jax.grad(total, argnums=(0, 1)))
        tables = (start, transition, log_emission, tokens)

        def as_tensor(found: Any) -> Tensor:
            return torch.from_numpy(np.array(found)).to(inputs.device)

        match work:
            case "W1":
                return Timed(
                    lambda: likelihood(*tables).block_until_ready(), lambda found: {"log_prob": as_tensor(found)}
                )
            case "W2":
                log_transition = jnp.log(transition)
                return Timed(
                    lambda: jax.block_until_ready(gradient(log_transition, log_emission, start, tokens)),
                    lambda found: {"transition": as_tensor(found[0]), "emission": as_tensor(found[1])},
                )
            case "W4":
                return Timed(lambda: path(*tables).block_until_ready(), lambda found: {"path": as_tensor(found).long()})
            case "W5":
                return Timed(
                    lambda: posterior(*tables).block_until_ready(), lambda found: {"posterior": as_tensor(found)}
                )


class HmmLearn:
    name = "hmmlearn"
    package = "hmmlearn"
    devices = ("cpu",)

    def reads(self, work: Work, device: torch.device) -> str:
        return "float64"

    def timed(self, work: Work, inputs: DenseInputs) -> Timed:
        from hmmlearn.hmm import CategoricalHMM

        sizes = inputs.sizes
        model = CategoricalHMM(sizes.states, implementation="scaling", n_features=sizes.num_words)
        # It asks for rows that sum to 1 in double precision.
        model.startprob_ = _float64_rows(inputs.start[None])[0]
        model.transmat_ = _float64_rows(inputs.transition)
        model.emissionprob_ = _float64_rows(inputs.emission.T)
        symbols = inputs.tokens.reshape(-1, 1).numpy()
        lengths = [sizes.length] * sizes.batch

        def counts(found: Any) -> Answer:
            statistics = found[0]
            return {
                "transition": torch.from_numpy(statistics["trans"]),
                "emission": torch.from_numpy(statistics["obs"]).T,
            }

        match work:
            case "W1":
                return Timed(
                    lambda: model.score(symbols, lengths),
                    lambda found: {"log_prob": torch.tensor(found, dtype=torch.float64)},
                )
            case "W2":
                return Timed(lambda: model._do_estep(symbols, lengths), counts)
            case "W4":
                return Timed(
                    lambda: model.decode(symbols, lengths)[1],
                    lambda found: {"path": torch.from_numpy(found).view(sizes.batch, -1)},
                )
            case "W5":
                return Timed(
                    lambda: model.predict_proba(symbols, lengths),
                    lambda found: {"posterior": torch.from_numpy(found).view(sizes.batch, sizes.length, -1)},
                )


class Pomegranate:
    name = "pomegranate"
    package = "pomegranate"
    # It holds an object a state and asks them one by one, which a GPU does not speed up.
    devices = ("cpu",)

    MAX_BYTES = 8 << 30
    """Its counts take a few tensors of all pairs of states at every position."""

    def reads(self, work: Work, device: torch.device) -> str:
        return "float32"

    def timed(self, work: Work, inputs: DenseInputs) -> Timed:
        sizes = inputs.sizes
        needed = 12 * sizes.batch * sizes.length * sizes.states**2
        if work == "W2" and needed > self.MAX_BYTES:
            raise NotOffered(f"would take about {needed / 2**30:.0f} GiB")
        from pomegranate.distributions import Categorical
        from pomegranate.hmm import DenseHMM

        model = DenseHMM(
            [Categorical(row[None]) for row in inputs.emission.T.contiguous()],
            edges=inputs.transition,
            starts=inputs.start,
            # A text may end in any state, at no cost.
            ends=torch.ones(sizes.states),
        )
        tokens = inputs.tokens[:, :, None]

        match work:
            case "W1":
                return Timed(lambda: model.log_probability(tokens), lambda found: {"log_prob": found})
            case "W2":
                return Timed(lambda: model.forward_backward(tokens), lambda found: {"transition": found[0].sum(0)})
            case "W4":
                return Timed(lambda: model.viterbi(tokens), lambda found: {"path": found})
            case "W5":
                return Timed(lambda: model.predict_proba(tokens), lambda found: {"posterior": found})


class PyJuice:
    name = "PyJuice"
    package = "pyjuice"
    devices = ("cuda",)

    def reads(self, work: Work, device: torch.device) -> str:
        return "float32"

    def timed(self, work: Work, inputs: DenseInputs) -> Timed:
        if work != "W1":
            raise NotOffered("measured for the likelihood alone")
        import pyjuice

        sizes = inputs.sizes
        nodes = pyjuice.structures.HMM(
            sizes.length,
            sizes.states,
            sizes.num_words,
            alpha=inputs.transition.cpu(),
            beta=inputs.emission.T.contiguous().cpu(),
            gamma=inputs.start.cpu(),
        )
        circuit = pyjuice.TensorCircuit(nodes).to(inputs.device)

        def likelihood() -> Any:
            with torch.no_grad():
                return circuit(inputs.tokens)

        return Timed(likelihood, lambda found: {"log_prob": found.flatten()})


PEERS: tuple[Peer, ...] = (PlainLoop(), Dynamax(), HmmLearn(), Pomegranate(), PyJuice())


def read_from(folder: Path) -> None:
    """Finds packages that are not installed in a folder: what `pip install --target` or unpacked wheels leave there."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: unpack the wheels of the peers there")
    # Last, so that what is installed, torch above all, comes first.
    sys.path.append(str(folder.resolve()))
    importlib.invalidate_caches()


def installed(peer: Peer) -> bool:
    return peer.package is None or importlib.util.find_spec(peer.package) is not None


def _float64_rows(rows: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    rows = rows.double()
    return (rows / rows.sum(1, keepdim=True)).numpy()
