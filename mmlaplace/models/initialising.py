"""Initial weights of modules of mmengine, outside of a Runner."""

import logging

from mmengine.logging import MMLogger
from mmengine.model import BaseModule


def initialise(module: BaseModule) -> None:
    """Call ``module.init_weights()``, as a Runner does, without its log line for each parameter.

    On the meta device, parameters have no values, which mmengine would read. There, it does
    nothing.
    """
    if any(parameter.is_meta for parameter in module.parameters()):
        return
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        module.init_weights()
    finally:
        logger.setLevel(level)
