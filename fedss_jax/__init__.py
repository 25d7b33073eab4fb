"""Federated Sampled Softmax (arXiv 2203.04888) as one jitted program a round."""

__version__ = "0.1.0"
