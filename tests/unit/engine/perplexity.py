"""Perplexity of the bundled model on a text."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tests.paged_model import PagedModel

BUNDLED = Path(__file__).parents[3] / "baton" / "bundled_model"
TEXT = """\
Return a list of the words in the string, using sep as the delimiter string. If maxsplit is given, at most maxsplit
splits are done, the rightmost ones. If sep is not specified, any whitespace string is a separator.

Open a file and return a stream. The mode is an optional string that specifies the mode in which the file is opened.
It defaults to 'r', which means open for reading in text mode. Other common values are 'w' for writing (truncating the
file if it already exists), 'x' for exclusive creation of a new file, and 'a' for appending. If the file cannot be
opened, an OSError is raised.

This module provides functions for working with dictionaries, lists and sets of objects. Each function takes an
iterable and returns a new object; the original one is not changed. The keys are compared with the operator ==, and
their order is the order in which they were added. If a key is missing, KeyError is raised unless a default value is
given.

Create a socket and connect it to an address. The optional timeout is a number of seconds, after which an attempt to
connect ends with TimeoutError; without it the global default timeout is used. If the host has several addresses, each
of them is tried until one succeeds, and the exception of the last one is raised if none does.

A thread calls acquire() to wait until the lock is free, and release() when it has finished. When several threads
wait, only one of them proceeds, and it is not defined which one. Trying to release an unlocked lock raises
RuntimeError. Locks also support the with statement: the lock is acquired when the block is entered and released when
it is left.

Parse a date in ISO format and return a datetime object. The string may have a time after the date, separated by a
space or by the letter T, and an offset from UTC at the end. ValueError is raised if the string has another format or
if one of its numbers is out of range, for example a month that is greater than 12.

Split the path into a pair, the directory and the name of the file. If the path ends with a slash, the name is empty.
If there is no slash in the path, the directory is empty. Slashes at the end of the directory are removed unless it is
the root. Both functions return strings of the type that was given to them.

Compile a regular expression pattern into an object which can be used for matching with its methods. The behaviour of
the expression can be changed with flags, which are combined with the operator |. If an expression is used several
times in one program, it is better to compile it once and to keep the object.

Return the largest item of an iterable or the largest of two or more arguments. With a key function, items are
compared by what it returns for them. If several items are equal, the first one is returned. If the iterable is empty
and there is no default, ValueError is raised.
"""


def logits_of(paged: PagedModel, tokens: list[int], chunk: int) -> Tensor:
    """Return the logits after every token, computed in chunks of `chunk` tokens."""
    parts = [paged.step({"text": tokens[first : first + chunk]})["text"] for first in range(0, len(tokens), chunk)]
    return torch.cat(parts)


def perplexity(**options: Any) -> float:
    """Return the bundled model's perplexity on the text."""
    tokens = Tokenizer.from_file(str(BUNDLED / "tokenizer.json")).encode(TEXT).ids
    assert len(tokens) > 700
    logits = logits_of(PagedModel(BUNDLED, **options), tokens, 64)
    return float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(tokens[1:])).exp())
