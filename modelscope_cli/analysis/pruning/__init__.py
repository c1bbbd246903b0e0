"""How far the outputs drift when weights are cut away."""
