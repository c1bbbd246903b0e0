"""`modelscope featuremaps`."""
