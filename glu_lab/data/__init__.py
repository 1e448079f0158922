"""Corpora, tokenizer, span corruption, packing: text files to batches."""

from glu_lab.data.dataset import TextDataset, load
from glu_lab.data.tokenizer import Tokenizer

__all__ = ["TextDataset", "Tokenizer", "load"]
