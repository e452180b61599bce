"""The model zoo: configs, the shared decoder, and one short file per family."""

from umlm.models.config import ModelConfig
from umlm.models.decoder import Decoder
from umlm.models.registry import MODELS, build, config_from_dict, text_part

__all__ = ["MODELS", "Decoder", "ModelConfig", "build", "config_from_dict", "text_part"]
