"""The types of changes."""

from collections.abc import Callable
from contextlib import AbstractContextManager

Act = Callable[[], object]
"""Called by a change each time it changes something, so that one with nothing to act on is not taken for a trial."""
Change = Callable[[Act], AbstractContextManager[None]]
"""One thing changed from outside, while open."""
