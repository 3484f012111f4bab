import warnings


def print_log(line: str, logger: str) -> None:
    warnings.warn(line, stacklevel=2)
