"""The models of the paper, each one file.

>>> from zoedge.models import CNN
>>> sum(p.numel() for p in CNN((3, 32, 32), 4).parameters())
544100
"""

from torch import nn

from zoedge.models.cnn import CNN
from zoedge.models.lstm import LSTM
from zoedge.models.mamba import Mamba
from zoedge.models.mlp import MLP
from zoedge.models.resnet import ResNet20
from zoedge.models.vit import ViT

IMAGE_MODELS: dict[str, type[nn.Module]] = {"mlp": MLP, "cnn": CNN, "resnet20": ResNet20, "vit": ViT}
TOKEN_MODELS: dict[str, type[nn.Module]] = {"lstm": LSTM, "mamba": Mamba}

__all__ = ["CNN", "IMAGE_MODELS", "LSTM", "MLP", "TOKEN_MODELS", "Mamba", "ResNet20", "ViT"]
