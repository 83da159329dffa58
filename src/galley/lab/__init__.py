"""Claims about inference, each measured on this machine: prediction, figure, picture, and verdict."""
