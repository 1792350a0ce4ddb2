"""The public data sets that are known by name, one small description each."""

from loop_rl.data.named import aqua, gsm8k, math500, mbpp, mbpp_plus, svamp
from loop_rl.data.named.description import NamedSet

SETS: dict[str, NamedSet] = {
    one.name: one for one in (gsm8k.SET, math500.SET, mbpp_plus.SET, mbpp.SET, svamp.SET, aqua.SET)
}

__all__ = ["SETS", "NamedSet"]
