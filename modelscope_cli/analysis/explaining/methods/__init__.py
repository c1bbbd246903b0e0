"""The methods of `explain`: each takes a scored model and one image, `(1, C, H, W)`, and returns a map."""
