"""How long an engine step takes, as a function of what is in the batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTime:
    """Coefficients of one model on one GPU, in seconds.

    The defaults are Llama-3-8B on an H100: at 1, 49 and 84 running requests they give 7.4, 8.9 and 10.1 ms per
    token, where a real server was measured at 7.4, 9.0 and 10.3 ms (~200 prompt and 62 output tokens).
    """

    #: launch and CPU work of any step
    base_s: float = 0.0010
    #: reading the weights once; hidden behind prefill when that takes longer
    weights_s: float = 0.0064
    #: one prompt (or generated) token
    token_s: float = 0.0000217
    #: one sequence in the batch
    sequence_s: float = 0.000020
    #: one token of context that a decode reads
    context_token_s: float = 4.9e-8

    def step_s(self, prefill_tokens: int, decodes: int, prefills: int, context_tokens: int) -> float:
        """Return the duration of a step that prefills and decodes this much."""
        return (
            self.base_s
            + max(self.weights_s, self.token_s * (prefill_tokens + decodes))
            + self.sequence_s * (decodes + prefills)
            + self.context_token_s * context_tokens
        )
