"""Prove a verifier: compute its exact output law by walking every decision that it can take.

A verifier draws only through `Draws`. `enumerate_outcomes` runs it once for every combination of outcomes of those
draws, and `output_law` sums them up over everything that a draft can propose. What comes out is the law of the output
to the last bits of float64, with no sampling error, so a bias of 1e-6 shows as clearly as one of 0.1:

    from hf_specverify.testing import assert_lossless
    assert_lossless(MyVerifier())
"""

from .cases import Case, Context, Laws, cases, contexts
from .draws import ScriptedDraws, enumerate_outcomes
from .laws import OutputLaw, law_error, output_law, target_law
from .proof import assert_lossless, assert_same_decisions, proofs
from .proposals import Proposal, Proposer, draft_blocks

__all__ = [
    "Case",
    "Context",
    "Laws",
    "OutputLaw",
    "Proposal",
    "Proposer",
    "ScriptedDraws",
    "assert_lossless",
    "assert_same_decisions",
    "cases",
    "contexts",
    "draft_blocks",
    "enumerate_outcomes",
    "law_error",
    "output_law",
    "proofs",
    "target_law",
]
