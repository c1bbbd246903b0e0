"""Mergeable statistics of tensors: moments, histograms, quantiles."""
