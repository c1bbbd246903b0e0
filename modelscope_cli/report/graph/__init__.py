"""The graph of a model: its items, drawn as nested boxes, or written for Graphviz and Mermaid."""
