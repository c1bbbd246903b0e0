"""The layers of a model: shapes, data flow and cost."""
