"""Registers Python codecs for the Windows encodings of the WHATWG Encoding Standard, such as `whatwg_cp1252`.

Python's own codecs lack some bytes from 0x80 to 0x9F, for example 0x81 in cp1252. The standard maps such a byte to the
control character with the same number (https://encoding.spec.whatwg.org/#legacy-single-byte-encodings). A link must
keep these bytes: a page that is labelled ISO-8859-1 but is in UTF-8 has them in its URLs.
"""

import codecs
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PREFIX: Final = "whatwg_"
_UNDEFINED: Final = "\ufffe"
"""Marks, in the table of a codec, a byte that the encoding does not define."""


def _found(name: str) -> codecs.CodecInfo | None:
    """Return the codec `name`, None if it is no codec of this module. Python calls this function once for a name."""
    if not name.startswith(_PREFIX):
        return None
    own = name.removeprefix(_PREFIX)
    table = "".join([_character(byte, own) for byte in range(256)])
    encoding = codecs.charmap_build(table)

    class Decoder(codecs.IncrementalDecoder):
        def decode(self, data: "ReadableBuffer", final: bool = False) -> str:
            return codecs.charmap_decode(data, self.errors, table)[0]

    return codecs.CodecInfo(
        name=name,
        encode=lambda text, errors="strict": codecs.charmap_encode(text, errors, encoding),
        decode=lambda data, errors="strict": codecs.charmap_decode(data, errors, table),
        incrementaldecoder=Decoder,
    )


def _character(byte: int, own: str) -> str:
    return bytes((byte,)).decode(own, "ignore") or (chr(byte) if byte < 0xA0 else _UNDEFINED)


codecs.register(_found)
