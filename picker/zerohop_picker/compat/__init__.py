"""The flags of llm-d-router and of the Gateway API Inference Extension's picker, said in ours.

`flags` has one table. `prepare` is what a command line goes through before our own parser sees it: a line that uses
any of those flags is rewritten (with the defaults that such a picker has: ports 9002, 9003 and 9090, TLS on), any other
line is left as it is. Go's way of writing flags is understood (`words`).

What belongs to the agent (which pool, how to read metrics) is in `Translation.agent`: `zerohop epp` runs both.
"""

from __future__ import annotations

from zerohop_picker.compat.flags import FLAGS
from zerohop_picker.compat.translation import Translation, is_foreign, prepare, translate

__all__ = ["FLAGS", "Translation", "is_foreign", "prepare", "translate"]
