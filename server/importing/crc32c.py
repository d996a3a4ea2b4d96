"""CRC-32C (Castagnoli), which protects the records of TensorBoard's files. zlib has only another polynomial."""

from __future__ import annotations

from functools import cache

import numpy as np

POLYNOMIAL = 0x82F63B78  # with reversed bits
LONG = 2048  # bytes from which NumPy is faster than a loop
LANE = 256  # bytes: a long record is cut into lanes of this length, which are computed side by side


def _of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


TABLE = [_of_byte(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    """The CRC-32C of the bytes."""
    if len(data) >= LONG:
        return _of_long(data)
    table, state = TABLE, 0xFFFFFFFF
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ state >> 8
    return state ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """The CRC-32C as TFRecord files store it: rotated by 15 bits, plus a constant."""
    found = crc32c(data)
    return ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _over_a_lane() -> list[list[int]]:
    """For each byte of a state, where LANE bytes of zeros bring each of its 256 values."""
    states = (np.arange(256, dtype=np.uint32)[None, :] << (8 * np.arange(4, dtype=np.uint32))[:, None]).ravel()
    moved: list[list[int]] = _advance(states, np.zeros((len(states), LANE), np.uint8)).reshape(4, 256).tolist()
    return moved


def _advance(states: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """The states (n,) after the bytes of their lanes (n, LANE)."""
    table = np.array(TABLE, np.uint32)
    for column in np.ascontiguousarray(lanes.T):
        states = table[(states ^ column) & 0xFF] ^ (states >> 8)
    return states


def _of_long(data: bytes) -> int:
    # a CRC is linear: the first state is added to the first 4 bytes, and zeros in front change nothing
    numbers = np.zeros(-(-len(data) // LANE) * LANE, np.uint8)
    numbers[-len(data) :] = np.frombuffer(data, np.uint8)
    start = len(numbers) - len(data)
    numbers[start : start + 4] ^= 0xFF
    lanes = numbers.reshape(-1, LANE)
    first, second, third, fourth = _over_a_lane()
    state = 0
    for lane in _advance(np.zeros(len(lanes), np.uint32), lanes).tolist():
        state = first[state & 0xFF] ^ second[state >> 8 & 0xFF] ^ third[state >> 16 & 0xFF] ^ fourth[state >> 24] ^ lane
    return int(state) ^ 0xFFFFFFFF
