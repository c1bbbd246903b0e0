"""Work that is cut into blocks of fixed content, shared out among processes, kept, and put together in order."""
