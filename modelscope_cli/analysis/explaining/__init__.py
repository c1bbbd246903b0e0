"""Explanations of a prediction, and checks of their faithfulness."""
