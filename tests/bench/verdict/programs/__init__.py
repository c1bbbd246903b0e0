"""Trainings of small networks, one function each. What is wrong with them is told by the manifest alone."""

from collections.abc import Callable
from importlib import import_module

from programs.scores import Score


def find(module: str, name: str) -> Callable[[], Score]:
    """Return a program: it runs from the state of torch's generator on, and returns how good its model became."""
    return getattr(import_module(f"programs.{module}"), name)
