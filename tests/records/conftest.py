"""Documents of every command, for the tests that read them back."""

from samples_of_results import documents  # noqa: F401
