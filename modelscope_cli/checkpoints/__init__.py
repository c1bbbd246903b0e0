"""Read what a checkpoint holds and what loading it would run, without torch and without running any of it.

Formats: `reading`, `torch_file`, `safetensors_header`; pickles: `pickle_machine`; is it safe: `safety/`.
"""
