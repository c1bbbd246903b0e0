def models() -> None:
    """x"""
