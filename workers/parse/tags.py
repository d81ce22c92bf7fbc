"""Scans an HTML byte stream for the start tags that matter: linear in time, constant in memory, without a tree.

A parser that builds a tree needs quadratic time and memory for hostile markup. Links need only the *tokenizer* of the
HTML standard (https://html.spec.whatwg.org/multipage/parsing.html#tokenization): tags with quoted and unquoted values,
comments, raw text elements, script's escaped states, bogus comments. This module implements the tokenizer. A regular
expression skips ordinary markup, and an exact step reads all other markup. `tags.c` is a compiled version of this
module, with the same results. This module is used if `tags.c` is not built.

Known differences from a tree builder:

- `<frame>` and `<a>` are reported even if the tree would drop them (frames outside a frameset, links inside one).
- Markup inside `<style>`, `<title>` and similar elements *of SVG and MathML* is treated as text.
- The content of `<noframes>` is treated as markup, as by a browser without frames.
"""

import re
from collections.abc import Callable
from typing import Final

from workers.parse.start_tags import ATTRIBUTE, Scan

_NAME_END: Final = rb"(?=[ \t\n\f\r/>])"

# The rest of an ordinary tag after its name: values follow `=` at once and `=` follows a name. The exact step handles
# all other tags. The repetition is bounded, because it bounds the matcher's stack.
_REST: Final = (
    rb"(?:>|[ \t\n\f\r/][^\"'=>]*+(?:=(?<=[\w:.@-]=)"
    rb"(?:\"[^\"]*+\"|'[^']*+'|[^ \t\n\f\r\"'=<>`]++(?=[ \t\n\f\r>]))[^\"'=>]*+){0,32}>)"
)

_RAW_TEXT: Final = rb"script|style|title|textarea|xmp|iframe|noembed"
_LINKING: Final = rb"a|area|base|link|meta|frame|html"
_WITH_IMAGES: Final = _LINKING + rb"|img|source"

# The usual link: only quoted values, an href, no rel. Group 1 captures the href.
_PLAIN_ATTRIBUTE: Final = rb"[a-z0-9:_.-]++=\"[^\"]*+\""
_PLAIN_LINK: Final = (
    rb"a(?:[ \t\n\f\r]++(?!href=|rel=)" + _PLAIN_ATTRIBUTE + rb"){0,16}[ \t\n\f\r]++href=\"([^\"\0\r]*+)\""
    rb"(?:[ \t\n\f\r]++(?!rel=)" + _PLAIN_ATTRIBUTE + rb"){0,16}[ \t\n\f\r]*+>"
)

# Names of tags to skip, by first letter. A name that only begins like that of a relevant tag goes to the exact step.
_PLAIN_NAME: Final = (
    rb"(?:[cdegjkoqru-wyz]|s(?!cript|tyle|vg|ource)|p(?!laintext)|l(?!ink)|t(?!itle|extarea|emplate)|b(?!ase)|h(?!tml)"
    rb"|i(?!frame|mg)|a(?!rea|[ \t\n\f\r/>])|m(?!eta|ath)|n(?!oembed)|f(?!rame)|x(?!mp))[^ \t\n\f\r/>]*+"
)


def _tag_finder(wanted: bytes) -> re.Pattern[bytes]:
    """Return a regular expression that skips simple markup and finds the next wanted tag.

    `wanted`: a regular expression for the names of the wanted tags. The groups of a match say what was found:

    - Group 1 is set: a plain link, which is an `a` tag with quoted values, an `href` and no `rel`, as in
      `<a href="/b">`. The group is the value of `href`.
    - Group 2 is set: any other wanted tag. The group is the tag without its `<`.
    - Both are None: no wanted tag was found yet. The caller must go on from the end of the match.
    """
    # A match without a wanted tag ends before markup that a regular expression cannot read safely, such as `<script/>`.
    # Or it ends at the end of the page, or earlier, because the length of a match is bounded.
    end_tag = rb"/(?:[a-lnoq-ru-zp]|s(?!vg)|t(?!emplate)|m(?!ath))[^\"'=>]*+>"
    raw = rb"".join(
        rb"|" + n + _NAME_END + _REST + rb"(?<!/>)[^<]*+(?:<(?!/" + n + rb"|!--)[^<]*+){0,256}</" + n + rb">"
        for n in (b"script", b"style")
    )
    comment = rb"|!--(?!-?>)[^-]*+(?:-(?!-!?>)[^-]*+){0,256}-->|![a-z][^>]*+>|(?![a-z/!?])"
    markup = rb"<(?:" + end_tag + rb"|" + _PLAIN_NAME + _REST + raw + comment + rb")[^<]*+"
    result = rb"<(?:" + _PLAIN_LINK + rb"|((?:" + wanted + rb")" + _NAME_END + _REST + rb"))"
    return re.compile(rb"[^<]*+(?:" + markup + rb"){0,256}(?:" + result + rb")?", re.IGNORECASE)


_RUN: Final = _tag_finder(_LINKING)
_RUN_WITH_IMAGES: Final = _tag_finder(_WITH_IMAGES)
_WANTED: Final = frozenset(_LINKING.split(b"|")) | {b"iframe"}
_WANTED_WITH_IMAGES: Final = frozenset(_WITH_IMAGES.split(b"|")) | {b"iframe"}
_RAW: Final = frozenset(_RAW_TEXT.split(b"|"))
FOREIGN: Final = frozenset((b"svg", b"math"))

_TAG_NAME: Final = re.compile(rb"</?([a-zA-Z][^ \t\n\f\r/>]*+)")
_SHADOW_ROOT: Final = re.compile(
    rb"[ \t\n\f\r/\"']shadowrootmode[ \t\n\f\r]*+=[ \t\n\f\r]*+[\"']?(?:open|closed)", re.I
)
_COMMENT_END: Final = re.compile(rb"--!?>")
_EMPTY_COMMENT: Final = re.compile(rb"<!---?>")
_RAW_END: Final = {n: re.compile(rb"</" + n + _NAME_END, re.IGNORECASE) for n in _RAW}
_SCRIPT_STEP: Final = re.compile(rb"<!(?=--)|-->|<(/?)script" + _NAME_END, re.IGNORECASE)


def scan_tags(html: bytes, *, images: bool = False, xml: bool = False, limit: int = 1_000_000) -> Scan:
    """Return the start tags of a, area, base, link, meta, frame, iframe and html.

    Tags in comments, raw text elements and templates are skipped, except in a declarative shadow root.

    - `html`: the page, in an encoding in which bytes below 0x40 are ASCII (all but UTF-16 and the ISO-2022 family).
    - `images`: also return the start tags of img and source.
    - `xml`: `<script/>` and similar elements are empty, and CDATA sections are text.
    - `limit`: the maximum of returned tags.
    """
    run = (_RUN_WITH_IMAGES if images else _RUN).match
    wanted = _WANTED_WITH_IMAGES if images else _WANTED
    hrefs: list[bytes] = []
    tags: list[bytes] = []
    before: list[int] = []
    title: bytes | None = None
    templates: list[bool] = []  # for each open template element: True if it hides its content
    hidden = foreign = position = 0
    end = len(html)
    while position < end:
        match = run(html, position)
        assert match is not None  # every part of the expression is optional
        position = match.end()
        href, tag = match.groups()
        if href is not None or tag is not None:
            if hidden:
                continue
            if href is not None:
                hrefs.append(href)
            else:
                tags.append(tag)
                before.append(len(hrefs))
            if len(hrefs) + len(tags) >= limit:
                break
            continue
        if position >= end or html[position] != 0x3C:  # the run stopped at its bound
            continue
        named = _TAG_NAME.match(html, position)
        if named is None:
            position = past_markup(html, position, cdata=xml or foreign > 0)
            continue
        behind = tag_end(html, named.end())
        if behind < 0:  # the stream ends inside a tag: no token
            position = end
            break
        start, position = position, behind
        name = named[1].lower()
        closing = html[start + 1] == 0x2F
        self_closing = html[behind - 2] == 0x2F
        if name == b"template":
            if foreign or (xml and self_closing and not closing):
                continue
            if not closing:
                templates.append(_SHADOW_ROOT.search(html, start, behind) is None)
                hidden += templates[-1]
            elif templates:
                hidden -= templates.pop()
        elif name in FOREIGN:
            if not self_closing:
                foreign = max(0, foreign - 1) if closing else foreign + 1
        elif not closing:
            if name in wanted and not hidden:
                tags.append(html[start + 1 : behind])
                before.append(len(hrefs))
                if len(hrefs) + len(tags) >= limit:
                    break
            if name == b"plaintext":
                position = end
            elif name in _RAW and not ((foreign or xml) and self_closing):
                position = raw_text_end(html, behind, name)
                if name == b"title" and title is None and not foreign and not hidden:
                    title = html[behind:position]
    return Scan(hrefs, tags, before, title or b"", position < end)


def tag_end(html: bytes, position: int) -> int:
    """Return the position after the `>` of the tag whose name ends at `position`. Return -1 if the tag does not end."""
    step: Callable[[bytes, int], re.Match[bytes] | None] = ATTRIBUTE.match
    while (match := step(html, position)) is not None:
        kind = match.lastgroup
        position = match.end()
        if kind == "end":
            return position
        if kind == "open":
            return -1
    return -1


def past_markup(html: bytes, position: int, *, cdata: bool) -> int:
    """Return the position after the comment, bogus comment, declaration or lone `<` at `position`.

    `cdata`: True to skip a CDATA section up to its `]]>`. False to skip it as a bogus comment, up to the first `>`.
    """
    if html.startswith(b"<!--", position):
        if (empty := _EMPTY_COMMENT.match(html, position)) is not None:
            return empty.end()
        closed = _COMMENT_END.search(html, position + 4)
        return closed.end() if closed is not None else len(html)
    if cdata and html.startswith(b"<![CDATA[", position):
        at = html.find(b"]]>", position + 9)
        return at + 3 if at >= 0 else len(html)
    if html[position + 1 : position + 2] in (b"!", b"?", b"/"):
        at = html.find(b">", position + 2)
        return at + 1 if at >= 0 else len(html)
    return position + 1


def raw_text_end(html: bytes, position: int, name: bytes) -> int:
    """Return the position at which the end tag of the raw text element `name` begins, or the end of the stream.

    The element's content begins at `position`. For script the specification's escaped states apply: inside `<!--`, a
    `<script` hides the next `</script`.
    """
    if name != b"script":
        closed = _RAW_END[name].search(html, position)
        return closed.start() if closed is not None else len(html)
    escaped = double = False
    while (step := _SCRIPT_STEP.search(html, position)) is not None:
        position = step.end()
        token = step[0]
        if token == b"<!":
            escaped = True
        elif token == b"-->":
            escaped = double = False
        elif step[1]:
            if not double:
                return step.start()
            double = False
        elif escaped:
            double = True
    return len(html)
