"""The encoding of a page is found as the HTML standard finds it, and no bytes are too broken for it."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.parse.charset import _CODECS, codec_of, sniff


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b"\xef\xbb\xbfx", "text/html; charset=koi8-r", "utf-8"),
        (b"\xff\xfex\0", "text/html; charset=koi8-r", "utf-16-le"),
        (b"\xfe\xff\0x", None, "utf-16-be"),
        (b'<meta charset="utf-8">\xe9', "text/html; charset=koi8-r", "koi8-r"),
        (b"x", 'text/html; charset="ISO-8859-1"', "whatwg_cp1252"),
        (b"x", "text/html;charset='us-ascii'", "whatwg_cp1252"),
        (b"x", "text/html; charset = latin1 ; boundary=x", "whatwg_cp1252"),
        (b"<meta charset=windows-1251>", "text/html; charset=nonsense", "whatwg_cp1251"),
        (b"<meta charset=windows-1251>", "text/html", "whatwg_cp1251"),
        (b'<META http-equiv=Content-Type content="text/html; charset=Shift_JIS">', None, "cp932"),
        (b'<meta content="text/html; charset=big5" http-equiv="content-type">', None, "big5hkscs"),
        (b'<meta content="text/html; charset=big5">', None, "utf-8"),
        (b"<!-- <meta charset=big5> --><meta charset=gbk>", None, "gb18030"),
        (b'<p title="<meta charset=big5>"><meta charset=gbk>', None, "gb18030"),
        (b"<meta charset=utf-16le>", None, "utf-8"),
        (b"<meta charset=x-user-defined>", None, "whatwg_cp1252"),
        (b" " * 1024 + b"<meta charset=big5>", None, "big5hkscs"),
        (b"<title>" + b"x" * 2000 + b"</title><meta charset=big5>", None, "big5hkscs"),
        (b"<!--" + b"x" * 2000 + b"<meta charset=big5>-->", None, "utf-8"),
        (b" " * 2000 + b"<script>'<meta charset=big5>'</script>", None, "utf-8"),
        (b" " * 70_000 + b"<meta charset=big5>", None, "utf-8"),
        (b"<?xml version='1.0' encoding='windows-1251'?><html>", None, "whatwg_cp1251"),
        (b'<?xml version="1.0" encoding="koi8-r"?><meta charset=big5>', "text/html", "big5hkscs"),
        (b'<?xml version="1.0" encoding="koi8-r"?><meta charset=big5>', "application/xhtml+xml", "koi8-r"),
        (b"<?xml version='1.0' encoding='utf-16'?><html>", None, "utf-8"),
        (b"x", "text/html charset=koi8-r", "koi8-r"),
        (b"<meta charset=big5", None, "utf-8"),
        (b"plain", None, "utf-8"),
        ("größer".encode(), None, "utf-8"),
        ("größer".encode("cp1252"), None, "whatwg_cp1252"),
        ("größ".encode()[:-1], None, "utf-8"),
    ],
)
def test_mark_wins_over_header_wins_over_meta_wins_over_guess(
    body: bytes, content_type: str | None, expected: str
) -> None:
    assert sniff(body, content_type) == expected


def test_every_label_names_a_codec_that_python_has() -> None:
    for label, codec in _CODECS.items():
        codecs.lookup(codec)
        assert codec_of(f" {label.upper()}\n") == codec


def test_labels_outside_the_standard_name_nothing() -> None:
    assert all(codec_of(label) is None for label in ("base64", "rot13", "utf-7", "unicode_escape", "", "utf-32"))


@given(st.binary(max_size=300), st.none() | st.text(max_size=60))
def test_any_bytes_decode_with_what_is_sniffed(body: bytes, content_type: str | None) -> None:
    body.decode(sniff(body, content_type), "replace")


@given(st.sampled_from(sorted(_CODECS)), st.binary(max_size=60))
def test_any_declared_encoding_decodes_any_bytes(label: str, body: bytes) -> None:
    assert body.decode(sniff(body[:0], f"text/html; charset={label}"), "replace") is not None


@pytest.mark.parametrize("number", [874, *range(1250, 1259)])
def test_windows_encoding_defines_each_byte_from_0x80_to_0x9f(number: int) -> None:
    """https://encoding.spec.whatwg.org/#legacy-single-byte-encodings"""
    codec = codec_of(f"windows-{number}")
    assert codec is not None
    for byte in map(bytes, zip(range(256), strict=True)):
        char = byte.decode(codec, "replace")
        standard = byte.decode(f"cp{number}", "replace")
        assert char == (chr(byte[0]) if standard == "\ufffd" and byte[0] < 0xA0 else standard)
        assert char == "\ufffd" or char.encode(codec) == byte
    decoder = codecs.getincrementaldecoder(codec)("replace")
    assert (decoder.decode(b"a\x90"), decoder.decode(b"", True)) == (b"a\x90".decode(codec), "")
    with pytest.raises(UnicodeEncodeError):
        "\u4e00".encode(codec)
