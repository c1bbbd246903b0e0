"""One self-contained page of one or two results: HTML that loads nothing, with its data inside."""
