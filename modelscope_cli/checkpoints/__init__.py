"""What a checkpoint holds, from its headers alone: no torch, no values, and nothing of the file is ever run."""
