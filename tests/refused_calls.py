"""Malformed calls, each of which must be refused by one ValueError. Run as a script, without the shape checks of the tests: those
would refuse wrong types first, which nothing does for a user. Prints one JSON object: what each call raised."""

import json
from collections.abc import Callable

import numpy as np
import torch
from tiny import tiny_corpus, tiny_model

import vlhmm
from vlhmm import control
from vlhmm.control.constraints import all_of
from vlhmm.tables import Belief, Tables

hmm = vlhmm.HMM.from_probabilities(
    [0.5, 0.5], [[0.25, 0.75], [0.5, 0.5]], [[1 / 7] * 7, [0.4] + [0.1] * 6], dtype=torch.float64
)
b = hmm.filter([[0, 1]]).belief
corpus = tiny_corpus(60)
m = tiny_model(corpus)
lm = vlhmm.LanguageModel(m, corpus.tokenizer)
T = [[0, 1, 2]]


def B(token: object = b.token, log_probs: object = b.log_probs) -> Belief:
    return Belief(token, log_probs)


CASES: dict[str, Callable[[], object]] = {
    "guide_str": lambda: vlhmm.Guide(lm, "cat", max_new_tokens=4),
    "guide_strs": lambda: vlhmm.Guide(lm, [vlhmm.contains("cat"), "dog"], max_new_tokens=4),
    "guide_path": lambda: vlhmm.Guide("runs/a", vlhmm.contains("cat"), max_new_tokens=4),
    "guide_none": lambda: vlhmm.Guide(None, vlhmm.contains("cat"), max_new_tokens=4),
    "guide_one": lambda: vlhmm.Guide(lm, 3, max_new_tokens=4),
    "lm_path": lambda: vlhmm.LanguageModel("runs/a", lm.tokenizer),
    "lm_tables": lambda: vlhmm.LanguageModel(hmm.tables, lm.tokenizer),
    "lm_words": lambda: vlhmm.LanguageModel(m, ["a", "b"]),
    "b_f32": lambda: hmm.log_prob(T, belief=B(log_probs=b.log_probs.float())),
    "b_f32n": lambda: hmm.next_token_probs(B(log_probs=b.log_probs.float())),
    "b_f32f": lambda: hmm.filter(T, belief=B(log_probs=b.log_probs.float())),
    "b_f32p": lambda: hmm.posterior(T, belief=B(log_probs=b.log_probs.float())),
    "b_int": lambda: hmm.log_prob(T, belief=B(log_probs=b.log_probs.long())),
    "b_tokf": lambda: hmm.log_prob(T, belief=B(token=b.token.float())),
    "b_tok2": lambda: hmm.log_prob(T, belief=B(token=b.token[:, None])),
    "b_tok0": lambda: hmm.log_prob(T, belief=B(token=b.token[0])),
    "b_meta": lambda: hmm.log_prob(T, belief=B(token=b.token.to("meta"), log_probs=b.log_probs.to("meta"))),
    "b_sparse": lambda: hmm.log_prob(T, belief=B(log_probs=b.log_probs.to_sparse())),
    "b_filtered": lambda: hmm.log_prob(T, belief=hmm.filter(T)),
    "b_tensor": lambda: hmm.log_prob(T, belief=b.log_probs),
    "b_stream": lambda: hmm.stream(2, belief=b.log_probs),
    "b_lists": lambda: hmm.log_prob(T, belief=Belief([0], [[0.0, 0.0]])),
    "b_batch": lambda: hmm.posterior(T * 2, belief=b),
    "b_infill": lambda: hmm.infill(T, [[False, True, False]], belief=B(log_probs=b.log_probs.float())),
    "tok_meta": lambda: hmm.log_prob(torch.zeros(1, 3, dtype=torch.long, device="meta")),
    "tok_sparse": lambda: hmm.log_prob(torch.ones(1, 3, dtype=torch.long).to_sparse()),
    "tok_object": lambda: hmm.log_prob(np.array([[0, 1, 2]], dtype=object)),
    "tok_none": lambda: hmm.log_prob(None),
    "tok_str": lambda: hmm.log_prob("the cat"),
    "tok_big": lambda: hmm.log_prob([[2**70]]),
    "len_obj": lambda: hmm.log_prob(T, lengths=[None]),
    "miss_int": lambda: hmm.infill(T, [[0, 1, 0]]),
    "miss_obj": lambda: hmm.infill(T, [[None, True, False]]),
    "miss_rag": lambda: hmm.infill(T, [[True], [True, False]]),
    "exclude": lambda: hmm.infill(T, [[False, True, False]], exclude=["a"]),
    "excludef": lambda: hmm.infill(T, [[False, True, False]], exclude=[1.5]),
    "k": lambda: hmm.viterbi(T, k=1.5),
    "window": lambda: hmm.posterior(T, window=1.5),
    "windows": lambda: hmm.posterior(T, window="a"),
    "num": lambda: hmm.sample(2.5, 3),
    "length": lambda: hmm.sample(2, "3"),
    "nump": lambda: hmm.sample_posterior(T, 2.5),
    "numi": lambda: hmm.infill(T, [[False, True, False]], num=1.5),
    "streamnum": lambda: hmm.stream(1.5),
    "streamnum2": lambda: hmm.stream(10**12),
    "gen": lambda: hmm.sample(2, 3, seed="7"),
    "seeds": lambda: hmm.sample_posterior(T, 2, seed=1.0),
    "seedi": lambda: hmm.infill(T, [[False, True, False]], seed=True),
    "seedf": lambda: hmm.fit(T, seed=[1]),
    "seedr": lambda: vlhmm.HMM.random(3, 4, seed=None),
    "randomwords": lambda: vlhmm.HMM.random(3, 2.5),
    "gen2": lambda: hmm.sample(2, 3, seed=np.random.default_rng(0)),
    "dev": lambda: hmm.to("cuad"),
    "dev2": lambda: hmm.to("cuda:98"),
    "dev3": lambda: hmm.to("meta"),
    "dev4": lambda: hmm.to("cuda:9"),
    "dev5": lambda: hmm.to(3.5),
    "dev6": lambda: hmm.to("mps"),
    "pdev": lambda: vlhmm.HMM.from_probabilities([1.0], [[1.0]], [[1.0]], device="gpu"),
    "pmeta": lambda: vlhmm.HMM.from_probabilities(torch.ones(1, device="meta"), [[1.0]], [[1.0]]),
    "psparse": lambda: vlhmm.HMM.from_probabilities([1.0], torch.ones(1, 1).to_sparse(), [[1.0]]),
    "pobj": lambda: vlhmm.HMM.from_probabilities([1.0], np.array([[1.0]], dtype=object), [[1.0]]),
    "pstr": lambda: vlhmm.HMM.from_probabilities(["a"], [[1.0]], [[1.0]]),
    "pnone": lambda: vlhmm.HMM.from_probabilities(None, [[1.0]], [[1.0]]),
    "pdtype": lambda: vlhmm.HMM.from_probabilities([1.0], [[1.0]], [[1.0]], dtype="float32"),
    "pdtype2": lambda: vlhmm.HMM.from_probabilities([1.0], [[1.0]], [[1.0]], dtype=np.float32),
    "preset": lambda: vlhmm.HMM.from_probabilities([1.0], [[1.0]], [[1.0]], reset_token=0.5),
    "pprec": lambda: vlhmm.HMM.from_probabilities([1.0], [[1.0]], [[1.0]], precision="fp8"),
    "tmeta": lambda: vlhmm.HMM(hmm.tables.to("meta")),
    "tsparse": lambda: vlhmm.HMM(
        Tables(hmm.tables.support, hmm.tables.log_start.to_sparse(), hmm.tables.transition, hmm.tables.log_emission)
    ),
    "tlist": lambda: vlhmm.HMM(Tables(hmm.tables.support, [0.0, 0.0], hmm.tables.transition, hmm.tables.log_emission)),
    "tnot": lambda: vlhmm.HMM({"a": 1}),
    "tmodel": lambda: vlhmm.HMM(m),
    "fitlr": lambda: hmm.fit([[0, 1]], learning_rate="a"),
    "fitit": lambda: hmm.fit([[0, 1]], iterations=1.5),
    "fitobj": lambda: hmm.fit(np.array([[0, 1]], dtype=object)),
    "fitnone": lambda: hmm.fit(None),
    "fit5": lambda: hmm.fit(5),
    "lscore": lambda: lm.score(None),
    "lscoreb": lambda: lm.score(b"the cat"),
    "lscorel": lambda: lm.score(["the", b"cat"]),
    "lscoreset": lambda: lm.score({"the", "cat"}),
    "lnextd": lambda: lm.next_tokens({"the": "cat"}),
    "lviterbi": lambda: lm.viterbi(["the", None]),
    "linfill": lambda: lm.infill(5),
    "lperplexity": lambda: lm.perplexity(["the", 5]),
    "lgenl": lambda: lm.generate(["the", b"cat"]),
    "lgengl": lambda: lm.generate(["the", "cat"], generator=[None, 5]),
    "lgensl": lambda: lm.generate(["the", "cat"], seed=[None, 5]),
    "lgensd": lambda: lm.generate("the", seed="5"),
    "lgenboth": lambda: lm.generate("the", seed=5, generator=torch.Generator()),
    "linfseed": lambda: lm.infill("the ___", seed=1.5),
    "linfgen": lambda: lm.infill("the ___", generator=5),
    "lgens": lambda: lm.generate("the", do_sample="no"),
    "lsur": lambda: lm.score("the caf\udce9"),
    "lgenp": lambda: lm.generate(None),
    "lgenn": lambda: lm.generate(num=1.5),
    "lgenm": lambda: lm.generate(max_tokens="5"),
    "lgent": lambda: lm.generate(temperature="hot"),
    "lgentk": lambda: lm.generate(top_k=1.5),
    "lgentp": lambda: lm.generate(top_p="a"),
    "lgeng": lambda: lm.generate(generator=3),
    "lgenc": lambda: lm.generate(constraint="cat"),
    "lgeninf": lambda: lm.generate(temperature=float("inf")),
    "lnext": lambda: lm.next_tokens("the", top=1.5),
    "lpost": lambda: lm.posterior("the", top=0),
    "lpost2": lambda: lm.posterior("the", top="a"),
    "lname": lambda: lm.name_state("a"),
    "lname2": lambda: lm.name_state(1.5),
    "lnamet": lambda: lm.name_state(0, top=-1),
    "lvit": lambda: lm.viterbi("the", k=1.5),
    "lexp": lambda: lm.explain("the", top=1.5),
    "linf": lambda: lm.infill("the ___", gap=(1.5, 2)),
    "linf2": lambda: lm.infill("the ___", gap=3),
    "linf3": lambda: lm.infill("the ___", exclude="cat"),
    "linf4": lambda: lm.infill(None),
    "linf5": lambda: lm.infill("the ___", exclude=[None]),
    "lcp": lambda: lm.constraint_probability("the", "x", 3),
    "lcpl": lambda: lm.constraint_probability("the", control.contains("cat"), 2.5),
    "lbest": lambda: lm.best_text(max_tokens=1.5),
    "load": lambda: vlhmm.load(".", device="gpu"),
    "load2": lambda: vlhmm.load(".", device="meta"),
    "load3": lambda: vlhmm.load(".", device="cuda:99"),
    "fit_method": lambda: hmm.fit(T, method="sgd"),
    "random_concentration": lambda: vlhmm.HMM.random(3, 4, concentration=0),
    "clen": lambda: control.length(1.5),
    "clen2": lambda: control.length("3"),
    "clen3": lambda: control.length(1, 2.5),
    "clen4": lambda: control.length(None),
    "clen5": lambda: control.length(True),
    "cwords": lambda: control.words(1.5),
    "cwn": lambda: control.words(float("nan")),
    "ccon": lambda: control.contains(None),
    "cconb": lambda: control.contains(b"x"),
    "cconl": lambda: control.contains(["a", "b"]),
    "ccona": lambda: control.contains_all("a", None),
    "cor": lambda: control.in_order("a", 3),
    "cex": lambda: control.excludes(["a"]),
    "cst": lambda: control.starts_with(5),
    "cen": lambda: control.ends_with(None),
    "creg": lambda: control.regex(None),
    "cregb": lambda: control.regex(b"a+"),
    "csur": lambda: control.contains("caf\udce9"),
    "csurr": lambda: control.regex("caf\udce9"),
    "cand": lambda: control.contains("a") & "b",
    "cor2": lambda: control.contains("a") | None,
    "call": lambda: all_of(["a"]),
    "cww": lambda: control.contains("a", whole_words="no"),
    "ccomp": lambda: control.contains("a").compile("word"),
}


def outcome(call: Callable[[], object]) -> tuple[str, str]:
    try:
        return "returned", type(call()).__name__
    except Exception as error:
        return type(error).__name__, str(error)


if __name__ == "__main__":
    print(json.dumps({name: outcome(call) for name, call in CASES.items()}))
