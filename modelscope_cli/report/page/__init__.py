"""One self-contained page of one or two results: HTML that asks nobody for anything, with its data inside."""
