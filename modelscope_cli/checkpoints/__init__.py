"""Read the content of a checkpoint and the code that loading it would run, without torch and without running it.

Formats: `reading`, `torch_file`, `safetensors_header`; pickles: `pickle_machine`; safety: `safety/`.
"""
