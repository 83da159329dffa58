"""The characters by which tokenizers of GPT-2's kind write bytes."""

from typing import Final


def _byte_of_char() -> dict[str, int]:
    """Return GPT-2's byte alphabet: printable Latin-1 is its own byte; U+0100 and up are the others."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


BYTE_OF_CHAR: Final = _byte_of_char()
"""Character of the alphabet -> the byte that it stands for."""
