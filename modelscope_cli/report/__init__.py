"""One file per format. Text formats see records only; the drawing modules see tensors as well."""
