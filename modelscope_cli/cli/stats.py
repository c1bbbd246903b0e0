def stats() -> None:
    """x"""
