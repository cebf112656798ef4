"""States of llama.cpp's sequences outside of its KV cache, as its server keeps them.

In host memory they are the server's prompt cache (`--cache-ram`), in files the saved slots of `--slot-save-path`. Here
a state is saved when its request has ended. The server saves it when the next request takes the slot, which delays that
request.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import llama_cpp
from driver import Setting


class SavedStates(Protocol):
    """Saved states of sequences, and the tokens of each."""

    def save(self, context: ctypes.c_void_p, slot: int, token_ids: Sequence[int]) -> None:
        """Save the state of a slot's sequence, which has these tokens."""
        ...

    def tokens(self) -> list[list[int]]:
        """Return the tokens of all saved states."""
        ...

    def restore(self, context: ctypes.c_void_p, slot: int, number: int) -> None:
        """Load the state with a number in `tokens` into an empty slot. Raises RuntimeError."""
        ...


class HostStates:
    """States in host memory, of which the oldest are dropped beyond a size."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._states: list[tuple[list[int], ctypes.Array[ctypes.c_uint8]]] = []

    def save(self, context: ctypes.c_void_p, slot: int, token_ids: Sequence[int]) -> None:
        """Save the state of a slot's sequence, which has these tokens."""
        size = llama_cpp.llama_state_seq_get_size(context, slot)
        if size > self._capacity_bytes:
            return
        while self._states and size + sum(len(state) for _, state in self._states) > self._capacity_bytes:
            del self._states[0]
        state = (ctypes.c_uint8 * size)()
        if llama_cpp.llama_state_seq_get_data(context, state, size, slot) != size:
            raise RuntimeError(f"llama_state_seq_get_data did not fill {size} bytes")
        self._states.append((list(token_ids), state))

    def tokens(self) -> list[list[int]]:
        """Return the tokens of all saved states."""
        return [token_ids for token_ids, _ in self._states]

    def restore(self, context: ctypes.c_void_p, slot: int, number: int) -> None:
        """Load a state into an empty slot. Raises RuntimeError."""
        _, state = self._states[number]
        if not llama_cpp.llama_state_seq_set_data(context, state, len(state), slot):
            raise RuntimeError("llama_state_seq_set_data failed")


class FileStates:
    """States in files of a directory, of which the oldest are deleted beyond a size."""

    def __init__(self, directory: Path, capacity_bytes: int) -> None:
        self._directory = directory
        self._capacity_bytes = capacity_bytes
        self._num_saved = 0
        self._files: list[tuple[list[int], Path]] = []

    def save(self, context: ctypes.c_void_p, slot: int, token_ids: Sequence[int]) -> None:
        """Save the state of a slot's sequence, which has these tokens."""
        size = llama_cpp.llama_state_seq_get_size(context, slot)
        while self._files and size + sum(path.stat().st_size for _, path in self._files) > self._capacity_bytes:
            self._files.pop(0)[1].unlink()
        path = self._directory / f"{self._num_saved}.bin"
        self._num_saved += 1
        tokens = (llama_cpp.llama_token * len(token_ids))(*token_ids)
        if not llama_cpp.llama_state_seq_save_file(context, bytes(path), slot, tokens, len(token_ids)):
            raise RuntimeError(f"{path} could not be written")
        self._files.append((list(token_ids), path))

    def tokens(self) -> list[list[int]]:
        """Return the tokens of all saved states."""
        return [token_ids for token_ids, _ in self._files]

    def restore(self, context: ctypes.c_void_p, slot: int, number: int) -> None:
        """Load a state into an empty slot. Raises RuntimeError."""
        token_ids, path = self._files[number]
        tokens, count = (llama_cpp.llama_token * len(token_ids))(), ctypes.c_size_t()
        read = llama_cpp.llama_state_seq_load_file(
            context, bytes(path), slot, tokens, len(token_ids), ctypes.byref(count)
        )
        if not read or list(tokens[: count.value]) != token_ids:
            raise RuntimeError(f"{path} could not be read")


def saved_states(setting: Setting) -> SavedStates:
    """Return the states that a setting keeps; without a store, none fits."""
    if setting.kv_store == "disk":
        return FileStates(Path(setting.kv_store_directory), setting.kv_store_bytes)
    return HostStates(setting.kv_store_bytes)
