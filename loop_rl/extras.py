"""Packages that only some users need, imported where they are; pyproject.toml lists them under their extras."""

from __future__ import annotations

import importlib
from typing import Any

from loop_rl.errors import UserError


def extra(module: str, name: str, what: str) -> Any:
    """A module of the extra `name`. Raises UserError, in `what` needs it, where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{what} needs {module.partition('.')[0]} ({error}); pip install 'loop-rl[{name}]'") from None
