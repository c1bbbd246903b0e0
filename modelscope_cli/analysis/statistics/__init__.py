"""Sums of tensors that merge: moments, histograms, correlations."""
