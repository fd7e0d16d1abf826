"""Hierarchical speculative decoding, which in its lossless form is block verification."""

from __future__ import annotations

from hf_specverify.verification.base import VerifierInfo
from hf_specverify.verification.block import BlockVerification


class HierarchicalVerification(BlockVerification):
    """An alias of `BlockVerification`, under the name of 2601.05724.

    Hierarchical speculative decoding tests prefixes from the last one upwards, with ratios of the joint
    probabilities p/q that are capped at 1 along the way. With the cap at *every* prefix, the last one included, its
    branch resampling has the same acceptances h and residuals as block verification: the same law of accepted length
    and next token. Testing the last prefix with the uncapped ratio accepts more, and the output then no longer has the
    target's law (off by one or two per cent on small vocabularies), so that form is not offered. Cuts as there.
    """

    info = VerifierInfo(
        name="hierarchical",
        lossless=True,
        structure="chain",
        paper=(
            "Hierarchical speculative decoding 2601.05724, the main algorithm; the same rule as "
            "Sun et al. 2403.10444, alg. 2"
        ),
        summary="Block verification: that is what the rule becomes with the ratio capped at every prefix.",
    )
