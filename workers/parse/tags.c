/* The compiled tag scanner: the same result as tags.py for every byte stream, in a tenth of the time.

   tags.py is the reference and documents the rules. tests/unit/test_compiled_tags.py compares the two. This file has
   the exact step of tags.py and the test for a plain link, but not the regular expression. It reads every byte a
   bounded number of times and none after `end`. It writes only the lists of spans. It releases the interpreter's lock
   while it scans a long stream, so that no page blocks the event loop.

   Limited API: one binary serves Python 3.11 and later. cli/dev/native.py builds it, compiled.py loads it. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned char byte;

#define LONG_STREAM (64 << 10) /* a shorter stream takes less than a millisecond */
#define PLAIN_ATTRIBUTES 16    /* before href, and after it */

/* The kinds of a byte. */
enum { BLANK = 1, SLASH = 2, MORE = 4, EQUALS = 8, QUOTE = 16, LETTER = 32, PLAIN = 64 };
#define NAME_END (BLANK | SLASH | MORE)

static const byte KIND[256] = {
    [' '] = BLANK, ['\t'] = BLANK, ['\n'] = BLANK, ['\f'] = BLANK, ['\r'] = BLANK,
    ['/'] = SLASH, ['>'] = MORE, ['='] = EQUALS, ['"'] = QUOTE, ['\''] = QUOTE,
    ['a' ... 'z'] = LETTER | PLAIN, ['A' ... 'Z'] = LETTER | PLAIN, ['0' ... '9'] = PLAIN,
    [':'] = PLAIN, ['_'] = PLAIN, ['.'] = PLAIN, ['-'] = PLAIN,
};

/* The traits of an element. */
enum { WANTED = 1, IMAGE = 2, RAW = 4, FOREIGN = 8, TEMPLATE = 16, PLAINTEXT = 32, ANCHOR = 64, TITLE = 128, SCRIPT = 256 };

typedef struct {
    const char *name;
    int traits;
} element;

static const element ELEMENTS[] = {
    {"a", WANTED | ANCHOR},
    {"svg", FOREIGN}, {"xmp", RAW}, {"img", IMAGE},
    {"area", WANTED}, {"base", WANTED}, {"link", WANTED}, {"meta", WANTED}, {"html", WANTED}, {"math", FOREIGN},
    {"frame", WANTED}, {"style", RAW}, {"title", RAW | TITLE},
    {"iframe", WANTED | RAW}, {"script", RAW | SCRIPT}, {"source", IMAGE},
    {"noembed", RAW},
    {"textarea", RAW}, {"template", TEMPLATE},
    {"plaintext", PLAINTEXT},
};
#define LONGEST_NAME 9
/* The index in ELEMENTS of the first name with so many letters. */
static const byte FIRST_OF_LENGTH[LONGEST_NAME + 2] = {0, 0, 1, 1, 4, 10, 13, 16, 17, 19, 20};

typedef struct {
    Py_ssize_t begin, end;
} span;

typedef struct {
    span *items;
    Py_ssize_t count, room;
} spans;

typedef struct {
    const byte *html, *end;
    int images, xml;
    Py_ssize_t limit;
    spans hrefs, tags;
    span title;
    int has_title, no_memory;
    const byte *stopped; /* the position where scanning stopped; `end` if all was scanned */
} scanner;

/* Append a span. If memory is short, record that and return 0. */
static int add(scanner *s, spans *to, const byte *begin, const byte *end)
{
    if (to->count == to->room) {
        Py_ssize_t room = to->room ? to->room * 2 : 64;
        span *items = realloc(to->items, (size_t)room * sizeof(span));
        if (items == NULL) {
            s->no_memory = 1;
            return 0;
        }
        to->items = items;
        to->room = room;
    }
    to->items[to->count].begin = begin - s->html;
    to->items[to->count].end = end - s->html;
    to->count++;
    return 1;
}

static const byte *find(const byte *at, const byte *end, int wanted)
{
    return at < end ? memchr(at, wanted, (size_t)(end - at)) : NULL;
}

static const byte *past_blanks(const byte *at, const byte *end)
{
    while (at < end && KIND[*at] & BLANK)
        at++;
    return at;
}

/* Return true if the bytes at `at` are `text` (lower case), in any case. */
static int reads(const byte *at, const byte *end, const char *text, Py_ssize_t length)
{
    if (end - at < length)
        return 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        byte here = at[i];
        if (here >= 'A' && here <= 'Z')
            here |= 0x20;
        if (here != (byte)text[i])
            return 0;
    }
    return 1;
}

static int traits_of(const byte *name, Py_ssize_t length)
{
    if (length > LONGEST_NAME)
        return 0;
    for (int i = FIRST_OF_LENGTH[length]; i < FIRST_OF_LENGTH[length + 1]; i++)
        if ((name[0] | 0x20) == (byte)ELEMENTS[i].name[0] && reads(name, name + length, ELEMENTS[i].name, length))
            return ELEMENTS[i].traits;
    return 0;
}

/* Return the position after the `>` of the tag whose name ends at `at`, or NULL if the stream ends before. */
static const byte *tag_end(const byte *at, const byte *end)
{
    for (;;) {
        while (at < end && KIND[*at] & (BLANK | SLASH))
            at++;
        if (at == end)
            return NULL;
        if (*at == '>')
            return at + 1;
        at++; /* a name may begin with anything else, `=` too */
        while (at < end && !(KIND[*at] & (NAME_END | EQUALS)))
            at++;
        at = past_blanks(at, end);
        if (at == end)
            return NULL;
        if (*at != '=')
            continue;
        at = past_blanks(at + 1, end);
        if (at == end)
            return NULL;
        if (KIND[*at] & QUOTE) {
            at = find(at + 1, end, *at);
            if (at == NULL)
                return NULL;
            at++;
        } else {
            while (at < end && !(KIND[*at] & (BLANK | MORE)))
                at++;
        }
    }
}

/* Return the position after the `>` of a plain link whose name ends at `at`, and set its href. NULL if it is none. */
static const byte *plain_link(const byte *at, const byte *end, const byte **begin, const byte **behind)
{
    int others = 0, found = 0;
    for (;;) {
        const byte *name = past_blanks(at, end);
        if (name == end)
            return NULL;
        if (*name == '>')
            return found ? name + 1 : NULL;
        const byte *close, *value = name;
        while (value < end && KIND[*value] & PLAIN)
            value++;
        Py_ssize_t length = value - name;
        if (name == at || length == 0 || end - value < 2 || value[0] != '=' || value[1] != '"')
            return NULL;
        value += 2;
        close = find(value, end, '"');
        if (close == NULL)
            return NULL;
        if (!found && length == 4 && reads(name, end, "href", 4)) {
            if (find(value, close, '\0') != NULL || find(value, close, '\r') != NULL)
                return NULL;
            *begin = value;
            *behind = close;
            found = 1;
            others = 0;
        } else if ((length == 3 && reads(name, end, "rel", 3)) || ++others > PLAIN_ATTRIBUTES) {
            return NULL;
        }
        at = close + 1;
    }
}

/* Return the position after the first `-->` or `--!>` (or `]]>`), `end` if there is none. */
static const byte *past_closing(const byte *at, const byte *end, byte twice)
{
    const byte *more;
    for (const byte *from = at; (more = find(from, end, '>')) != NULL; from = more + 1) {
        const byte *last = more - (twice == '-' && more > at && more[-1] == '!');
        if (last - at >= 2 && last[-1] == twice && last[-2] == twice)
            return more + 1;
    }
    return end;
}

/* Return the position after the comment, bogus comment, declaration or lone `<` at `at`. */
static const byte *past_markup(const byte *at, const byte *end, int cdata)
{
    if (reads(at, end, "<!--", 4)) {
        if (reads(at + 4, end, ">", 1))
            return at + 5;
        if (reads(at + 4, end, "->", 2))
            return at + 6;
        return past_closing(at + 4, end, '-');
    }
    if (cdata && end - at >= 9 && memcmp(at, "<![CDATA[", 9) == 0)
        return past_closing(at + 9, end, ']');
    if (end - at >= 2 && (at[1] == '!' || at[1] == '?' || at[1] == '/')) {
        const byte *more = find(at + 2, end, '>');
        return more == NULL ? end : more + 1;
    }
    return at + 1;
}

/* Return true if `name` is at `at` as the name of a tag: a blank, `/` or `>` follows. */
static int is_tag_name(const byte *at, const byte *end, const char *name, Py_ssize_t length)
{
    return end - at > length && KIND[at[length]] & NAME_END && reads(at, end, name, length);
}

/* Return where the end tag of a script element begins, by the escaped states. Its content begins at `at`. */
static const byte *script_end(const byte *at, const byte *end)
{
    int escaped = 0, doubly = 0;
    while (at < end) {
        if (!escaped && (at = find(at, end, '<')) == NULL)
            return end;
        if (*at == '<') {
            if (end - at >= 4 && at[1] == '!' && at[2] == '-' && at[3] == '-') {
                escaped = 1;
                at += 2; /* the dashes may belong to `-->` */
                continue;
            }
            if (end - at >= 2 && at[1] == '/' && is_tag_name(at + 2, end, "script", 6)) {
                if (!doubly)
                    return at;
                doubly = 0;
            } else if (escaped && is_tag_name(at + 1, end, "script", 6)) {
                doubly = 1;
            }
        } else if (*at == '-' && end - at >= 3 && at[1] == '-' && at[2] == '>') {
            escaped = doubly = 0;
        }
        at++;
    }
    return end;
}

/* Return where the end tag of the raw text element `name` (as written) begins. Its content begins at `at`. */
static const byte *raw_end(const byte *at, const byte *end, const byte *name, Py_ssize_t length)
{
    char lower[LONGEST_NAME];
    for (Py_ssize_t i = 0; i < length; i++)
        lower[i] = (char)(name[i] | 0x20);
    for (; (at = find(at, end, '<')) != NULL; at++)
        if (end - at >= 2 && at[1] == '/' && is_tag_name(at + 2, end, lower, length))
            return at;
    return end;
}

/* Return true if the template tag from `at` to `end` declares a shadow root, which hides nothing. */
static int has_shadow_root(const byte *at, const byte *end)
{
    for (; at < end; at++) {
        if (!(KIND[*at] & (BLANK | SLASH | QUOTE)) || !reads(at + 1, end, "shadowrootmode", 14))
            continue;
        const byte *mode = past_blanks(at + 15, end);
        if (mode == end || *mode != '=')
            continue;
        mode = past_blanks(mode + 1, end);
        if (mode < end && KIND[*mode] & QUOTE)
            mode++;
        if (reads(mode, end, "open", 4) || reads(mode, end, "closed", 6))
            return 1;
    }
    return 0;
}

/* Scan the stream up to its end or the limit. Runs without the interpreter's lock, so it must not call Python. */
static void scan(scanner *s)
{
    const byte *at = s->html, *end = s->end, *behind, *begin, *close;
    spans templates = {NULL, 0, 0}; /* the tag of each open template element, empty if it hides nothing */
    Py_ssize_t hidden = 0, foreign = 0;
    int wanted = s->images ? WANTED | IMAGE : WANTED;

    while ((at = find(at, end, '<')) != NULL) {
        const byte *start = at++;
        int closing = at < end && *at == '/';
        at += closing;
        if (at == end || !(KIND[*at] & LETTER)) {
            at = past_markup(start, end, s->xml || foreign > 0);
            continue;
        }
        const byte *name = at;
        while (at < end && !(KIND[*at] & NAME_END))
            at++;
        Py_ssize_t length = at - name;
        int traits = traits_of(name, length);
        if (traits & ANCHOR && !closing && (behind = plain_link(at, end, &begin, &close)) != NULL) {
            at = behind;
            if (hidden)
                continue;
            if (!add(s, &s->hrefs, begin, close) || s->hrefs.count + s->tags.count >= s->limit)
                break;
            continue;
        }
        at = tag_end(at, end);
        if (at == NULL)
            break; /* the stream ends inside a tag: no token */
        if (!traits)
            continue;
        behind = at;
        int self_closing = behind[-2] == '/';
        if (traits & TEMPLATE) {
            if (foreign || (s->xml && self_closing && !closing))
                continue;
            if (!closing) {
                int hides = !has_shadow_root(start, behind);
                if (!add(s, &templates, start, hides ? behind : start))
                    break;
                hidden += hides;
            } else if (templates.count) {
                span opened = templates.items[--templates.count];
                hidden -= opened.end > opened.begin;
            }
        } else if (traits & FOREIGN) {
            if (!self_closing)
                foreign = closing ? (foreign ? foreign - 1 : 0) : foreign + 1;
        } else if (!closing) {
            if (traits & wanted && !hidden)
                if (!add(s, &s->tags, start + 1, behind) || s->hrefs.count + s->tags.count >= s->limit)
                    break;
            if (traits & PLAINTEXT) {
                at = end;
            } else if (traits & RAW && !((foreign || s->xml) && self_closing)) {
                at = traits & SCRIPT ? script_end(behind, end) : raw_end(behind, end, name, length);
                if (traits & TITLE && !s->has_title && !foreign && !hidden) {
                    s->has_title = 1;
                    s->title.begin = behind - s->html;
                    s->title.end = at - s->html;
                }
            }
        }
    }
    s->stopped = at == NULL ? end : at;
    free(templates.items);
}

static PyObject *bytes_of(const scanner *s, span of)
{
    return PyBytes_FromStringAndSize((const char *)s->html + of.begin, of.end - of.begin);
}

static PyObject *list_of(const scanner *s, const spans *of)
{
    PyObject *list = PyList_New(of->count);
    for (Py_ssize_t i = 0; list != NULL && i < of->count; i++) {
        PyObject *item = bytes_of(s, of->items[i]);
        if (item == NULL || PyList_SetItem(list, i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* Return, for each tag, how many hrefs come before it. */
static PyObject *hrefs_before(const scanner *s)
{
    PyObject *list = PyList_New(s->tags.count);
    for (Py_ssize_t i = 0, count = 0; list != NULL && i < s->tags.count; i++) {
        while (count < s->hrefs.count && s->hrefs.items[count].begin < s->tags.items[i].begin)
            count++;
        PyObject *item = PyLong_FromSsize_t(count);
        if (item == NULL || PyList_SetItem(list, i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *scan_tags(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *html, *result = NULL;
    scanner s = {0};
    if (!PyArg_ParseTuple(arguments, "Sppn:scan", &html, &s.images, &s.xml, &s.limit))
        return NULL;
    Py_ssize_t size = PyBytes_Size(html);
    s.html = (const byte *)PyBytes_AsString(html);
#ifdef EXACT_COPY /* lets AddressSanitizer detect a read of the NUL that Python adds after bytes */
    byte *copy = malloc((size_t)size);
    if (copy == NULL && size)
        return PyErr_NoMemory();
    if (size)
        memcpy(copy, s.html, (size_t)size);
    s.html = copy;
#endif
    s.end = s.html + size;
    if (size > LONG_STREAM) { /* `arguments` keeps the stream alive, and bytes do not change */
        PyThreadState *state = PyEval_SaveThread();
        scan(&s);
        PyEval_RestoreThread(state);
    } else {
        scan(&s);
    }
    if (s.no_memory) {
        PyErr_NoMemory();
    } else {
        PyObject *hrefs = list_of(&s, &s.hrefs), *tags = hrefs ? list_of(&s, &s.tags) : NULL;
        PyObject *before = tags ? hrefs_before(&s) : NULL, *title = before ? bytes_of(&s, s.title) : NULL;
        if (title != NULL)
            result = Py_BuildValue("OOOOO", hrefs, tags, before, title, s.stopped < s.end ? Py_True : Py_False);
        Py_XDECREF(hrefs);
        Py_XDECREF(tags);
        Py_XDECREF(before);
        Py_XDECREF(title);
    }
    free(s.hrefs.items);
    free(s.tags.items);
#ifdef EXACT_COPY
    free(copy);
#endif
    return result;
}

static PyMethodDef METHODS[] = {
    {"scan", scan_tags, METH_VARARGS, "scan(html, images, xml, limit) -> (hrefs, tags, before, title, cut), as Scan"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot SLOTS[] = {{0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_tags", "The tag scanner of workers/parse/tags.py, compiled.", 0, METHODS, SLOTS, 0, 0, 0,
};

PyMODINIT_FUNC PyInit__tags(void)
{
    return PyModuleDef_Init(&MODULE);
}
