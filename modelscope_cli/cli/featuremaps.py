def featuremaps() -> None:
    """x"""
