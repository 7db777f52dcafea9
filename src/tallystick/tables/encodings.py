"""Judge from its letters in which encoding a text was written, because most bytes are text in many encodings.

In a wrong encoding letters stand in wrong places: capitals behind small letters, signs within words, many accents in a row.
"""

import codecs
import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

FITTING, CLOSE, MOST = 0.7, 0.1, 3
"""Least score of an encoding that is proposed, how far others may be behind the best one, and how many are proposed."""
CERTAIN, BETTER, FEWEST = 0.9, 0.25, 4
"""What shows that text was read in a wrong encoding: the score of another one, how much better it is, and letters to judge by."""
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_SIGNS = frozenset("€£¥§°·–—‘’“”„«»‹›…©®™¿¡´ºª²³¹½¼¾µ×\u00a0±•′\u3000、。・，（）：")  # noqa: RUF001
"""Signs beside words and numbers of any language."""
_JOINING, _QUOTES = "’´·\u00a0–—‘", "‘’“”„«»‹›…–—\u00a0"  # noqa: RUF001
_WESTERN = ("äöüß", "éèêàçùâîôûëïœ", "áéíóúñü", "áâãàçéêíóôõú", "åäöæøé", "àèéìòù", "áðéíóúýþæö")
_CENTRAL = ("ąćęłńóśźż", "áčďéěíňóřšťúůýžäľôĺ", "áéíóöőúüű", "ăâîşţ", "čćđšž")
_RUSSIAN, _GREEK = "оеаинтсрвлкмдпуяіь", "αοιετσςνηυρπκμλάόίέήύώ"
_LANGUAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    **dict.fromkeys(("windows-1252", "mac-roman", "cp850", "cp437"), ("LATIN", _WESTERN)),
    **dict.fromkeys(("windows-1250", "iso-8859-2", "cp852"), ("LATIN", _CENTRAL)),
    "windows-1254": ("LATIN", ("çğıöşü",)),
    **dict.fromkeys(("windows-1251", "koi8-r", "cp866", "iso-8859-5", "mac-cyrillic"), ("CYRILLIC", (_RUSSIAN,))),
    **dict.fromkeys(("windows-1253", "iso-8859-7"), ("GREEK", (_GREEK,))),
    "windows-1255": ("HEBREW", ("יוהלארתשמבנדם",)),
    "windows-1256": ("ARABIC", ("اليمونرتبةعدسفهكقح",)),
    "cp874": ("THAI", ("านรอกเงมยลวดทสตะปบคหแจพชขใไ่้ิีัุู",)),
}
"""Encodings with one byte for a letter, the script that they add to ASCII, and frequent letters of each of its languages."""
_USUAL_SHARE = 0.8  # of the frequent letters among all, in scripts other than Latin
_LEADS: dict[str, tuple[range, ...]] = {
    "euc-kr": (range(0xB0, 0xC9),),
    "gbk": (range(0xB0, 0xD8),),
    "big5": (range(0xA4, 0xC7),),
    "shift_jis": (range(0x82, 0x84), range(0x88, 0x99)),
    "euc-jp": (range(0xA4, 0xA6), range(0xB0, 0xD0)),
}
"""Encodings with two bytes for a letter, and first bytes of the frequent ones."""
_READ_AS = ("windows-1252", "latin-1", "windows-1251", "mac-roman", "cp850", "windows-1250")


def likely_encodings(raw: bytes) -> list[str]:
    """List up to three encodings in which these bytes are plausible text, the best first."""
    scores = _scores(raw)
    least = max(FITTING, max(scores.values(), default=0.0) - CLOSE)
    return sorted((codec for codec, score in scores.items() if score >= least), key=lambda codec: -scores[codec])[:MOST]


def true_encodings(text: str) -> list[str]:
    """List the likely encodings of text that was read in another one, the best first: none if the text is plausible."""
    letters = _letters(text)
    if len(letters) < FEWEST:
        return []
    own = max(_plausibility(letters, *language) for language in set(_LANGUAGES.values()))
    for codec in _READ_AS if own + BETTER <= 1 else ():
        with suppress(UnicodeError):
            raw = text.encode(codec)
            if max(_scores(raw).values()) >= max(CERTAIN, own + BETTER):
                return likely_encodings(raw)
    return []


def _scores(raw: bytes) -> dict[str, float]:
    """Return how plausible the text is that these bytes are in each encoding, from 0 to 1. Of equal texts take the first."""
    scores, texts = dict[str, float](), set[str]()
    for codec in (*_LANGUAGES, *_LEADS):
        try:
            text = codecs.getincrementaldecoder(codec)().decode(raw)  # a last letter may be cut
        except UnicodeError:
            continue
        if text in texts:
            continue
        texts.add(text)
        letters = _letters(text)
        if not letters:
            scores[codec] = float(codec == "windows-1252")  # signs alone, such as the Euro's
        elif codec in _LANGUAGES:
            scores[codec] = _plausibility(letters, *_LANGUAGES[codec])
        else:
            is_frequent = [ok and any(letter.encode(codec)[0] in leads for leads in _LEADS[codec]) for letter, ok in letters]
            scores[codec] = sum(is_frequent) / len(letters)
    return scores


def _plausibility(letters: Sequence[tuple[str, bool]], script: str, languages: Sequence[str]) -> float:
    """Return how plausible letters are in one of these languages, from 0 to 1."""
    placed = sum(is_placed and _script(letter) == script for letter, is_placed in letters) / len(letters)
    share = max(sum(letter.lower() in language for letter, _ in letters) for language in languages) / len(letters)
    return placed * (1 + min(1.0, share if script == "LATIN" else share / _USUAL_SHARE)) / 2


def _letters(text: str) -> list[tuple[str, bool]]:
    """List the characters beyond ASCII, except signs beside words, and tell for each whether it stands in a usual place."""
    letters = list[tuple[str, bool]]()
    for run in _BEYOND_ASCII.finditer(text):
        first, last = run.span()
        before, behind = text[max(first - 1, 0) : first], text[last : last + 1]
        if _SIGNS.issuperset(run[0]) and len(set(run[0])) <= 2:
            if before.isalpha() and behind.islower() and not set(_JOINING).issuperset(run[0]):
                letters += [(sign, False) for sign in run[0]]  # within a word
            continue
        scripts = {_script(letter) for letter in run[0] if letter not in _SIGNS}
        is_alone = not before.isalpha() and not behind.isalpha()
        core = run[0].strip(_QUOTES)
        # Latin words have few accents in a row, and words of other scripts no Latin letter
        is_wrong = len(set(core)) > 2 or (len(core) == 2 and is_alone) if scripts <= {"LATIN", ""} else "LATIN" in scripts
        for place, letter in enumerate(run[0], first):
            left, right = text[max(place - 1, 0) : place], text[place + 1 : place + 2]
            script = _script(letter)
            if letter in _SIGNS:
                is_placed = not is_wrong
            elif script == "LATIN":
                is_placed = not (letter.isupper() and (left.islower() or (left.isupper() and right.islower())))
                is_placed &= not (letter.islower() and letter != "ß" and left.isupper() and right.isupper())
            elif script == "CJK":
                is_placed = not (left.isascii() and left.isalpha() and right.isascii() and right.islower())
            else:
                is_placed = bool(script) and not any(each.isascii() and each.isalpha() for each in (left, right))
                is_placed &= not (letter.isupper() and left.islower())
            letters.append((letter, is_placed and not is_wrong))
    return letters


@cache
def _script(letter: str) -> str:
    """Return the first word of a letter's name, such as GREEK, or nothing for a sign."""
    name = unicodedata.name(letter, "") if unicodedata.category(letter)[0] in "LM" else ""
    return "KANA" if name.startswith(("HIRAGANA", "KATAKANA")) else re.split("[ -]", name)[0]
