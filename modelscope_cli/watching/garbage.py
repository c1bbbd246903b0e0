"""Collect no garbage while a step is recorded. Standard library only."""

import gc


class GarbagePause:
    """Switches Python's garbage collection off and on again.

    What a record makes lives until the step ends. Python would take it for lasting, and soon search all objects.
    """

    _is_open = False

    def begin(self) -> None:
        """Collect nothing until `end`, if garbage is collected at all."""
        self._is_open |= gc.isenabled()
        gc.disable()

    def end(self) -> None:
        if self._is_open:
            self._is_open = False
            gc.enable()
