"""Whether the Hugging Face hub answers, asked once and briefly: its own clients retry for half a minute."""

import os
import urllib.error
import urllib.request

SECONDS = 5.0
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


def unreachable() -> str | None:
    """Why the hub doesn't answer, or None; also None offline by choice, where only its cache is asked, at once."""
    if any(os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"} for name in _OFFLINE):
        return None
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=SECONDS).close()
    except urllib.error.HTTPError:
        return None  # it answers, if only to refuse
    except (OSError, ValueError) as error:
        return f"{endpoint} does not answer: {getattr(error, 'reason', error)}"
    return None
