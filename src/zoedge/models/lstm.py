"""An LSTM over tokens."""

from torch import Tensor, nn


class LSTM(nn.Module):
    """An embedding, a stack of LSTM layers, a linear layer at every position.

    Args:
        tokens: number of different tokens.
        classes: number of outputs.
        width: of the embedding.
        hidden: of the LSTM.
        depth: number of layers.
    """

    def __init__(self, tokens: int, classes: int, width: int = 48, hidden: int = 48, depth: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, hidden, depth, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Outputs at every position, shape (n, length, classes)."""
        return self.head(self.lstm(self.embedding(tokens))[0])
