"""What every command returns: frozen, plain numbers and strings, no tensors and no modules.

The keys of `to_dict` are the JSON contract. Inside one schema version keys are added, never renamed.
Units are in the names: `_bytes`, `_ms`, `_fraction` (0..1). Counts are integers.
"""
