"""The encoding of a file is judged from its letters, and so is text that was read in a wrong one."""

import polars as pl
import pytest

from tallystick.config.table import TableConfig
from tallystick.errors import DataError
from tallystick.tables.doubtful_text import encoding_warning
from tallystick.tables.encodings import likely_encodings, true_encodings
from tallystick.tables.table import read_table

WORDS = {
    "german": ["Köln", "Müller", "Grüße", "Bäcker", "Österreich"],
    "french": ["Élodie", "François", "créée", "forêt", "à côté"],
    "spanish": ["Peña", "Muñoz", "José", "Málaga", "Córdoba"],
    "portuguese": ["São Paulo", "ações", "João", "Conceição", "Praça"],
    "danish": ["København", "Århus", "Sørensen", "Æbelø"],
    "polish": ["Łódź", "Wrocław", "Kraków", "Gdańsk", "Częstochowa"],
    "czech": ["Plzeň", "Příbram", "České Budějovice", "Ústí", "Žďár"],
    "turkish": ["İstanbul", "Iğdır", "Şanlıurfa", "Çağrı", "Güneş"],  # noqa: RUF001
    "russian": ["Москва", "Санкт-Петербург", "Казань", "муж", "жен"],
    "greek": ["Αθήνα", "Θεσσαλονίκη", "Πάτρα"],
    "hebrew": ["שלום", "ירושלים", "תל אביב"],
    "arabic": ["القاهرة", "دمشق", "الرياض"],
    "thai": ["กรุงเทพ", "เชียงใหม่"],
    "chinese": ["北京", "上海", "男", "女", "广州市"],
    "chinese of Taiwan": ["臺北", "高雄", "男", "女", "新竹市"],
    "japanese": ["東京", "おおさか", "名古屋", "カタカナ"],
    "korean": ["서울", "부산", "남자", "여자", "인천광역시"],
}
WRITTEN_IN = [
    *[(words, codec) for words in ("german", "french", "spanish", "portuguese", "danish") for codec in ("cp1252", "mac-roman")],
    *[("german", "cp850"), ("polish", "cp1250"), ("polish", "iso-8859-2"), ("czech", "cp1250"), ("czech", "cp852")],
    *[("turkish", "cp1254"), ("greek", "cp1253"), ("hebrew", "cp1255"), ("arabic", "cp1256"), ("thai", "cp874")],
    *[("russian", codec) for codec in ("cp1251", "koi8-r", "cp866", "iso-8859-5", "mac-cyrillic")],
    *[("chinese", "gbk"), ("chinese of Taiwan", "big5"), ("japanese", "cp932"), ("japanese", "euc-jp"), ("korean", "euc-kr")],
]


@pytest.mark.parametrize(("language", "codec"), WRITTEN_IN)
def test_the_encoding_that_is_proposed_first_reads_the_words(language, codec, tmp_path):
    """Before, windows-1252 was proposed for every file, and reads almost all of these without an error."""
    text = "".join(["id,name\n", *(f"{number},{word}\n" for number, word in enumerate(WORDS[language]))])
    assert text.encode(codec).decode(likely_encodings(text.encode(codec))[0]) == text
    (tmp_path / "t.csv").write_bytes(text.encode(codec))
    with pytest.raises(DataError, match=r"is not text in utf-8; name its encoding .*`encoding: ") as raised:
        read_table(TableConfig(path=tmp_path / "t.csv"))
    proposed = str(raised.value).partition("`encoding: ")[2].partition("`")[0]
    assert read_table(TableConfig(path=tmp_path / "t.csv", encoding=proposed)).get_column("name").to_list() == WORDS[language]


@pytest.mark.parametrize(
    ("language", "codec", "read_as"),
    [
        *[("russian", codec, read_as) for codec in ("cp1251", "koi8-r") for read_as in ("cp1252", "latin-1", "mac-roman")],
        *[("chinese", "gbk", "cp1252"), ("chinese", "gbk", "latin-1"), ("chinese", "gbk", "cp1251")],
        *[("german", "mac-roman", "cp1252"), ("german", "cp1252", "mac-roman"), ("german", "cp1252", "cp1251")],
        *[("polish", "cp1250", "cp1252"), ("greek", "cp1253", "latin-1"), ("japanese", "cp932", "latin-1")],
        ("korean", "euc-kr", "cp1252"),
    ],
)
def test_text_that_was_read_in_another_encoding_is_said_with_its_own(language, codec, read_as):
    words = [word.encode(codec).decode(read_as) for word in WORDS[language]]
    said = encoding_warning(pl.Series("x", words))
    assert any(
        WORDS[language] == [word.encode(read_as).decode(each) for word in words] for each in true_encodings("\n".join(words))
    )
    assert said is not None


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS.keys())
def test_words_as_they_are_written_are_not_doubted(words):
    assert encoding_warning(pl.Series("x", words)) is None
    assert encoding_warning(pl.Series("x", [word.upper() for word in words])) is None


def test_words_of_many_languages_signs_and_names_are_not_doubted():
    assert encoding_warning(pl.Series("x", [word for words in WORDS.values() for word in words])) is None
    signs = [
        "5 €",
        "20 °C",
        "12 m²",
        "±3",
        "it\u2019s",
        "“yes”",
        "x \u2013 y",
        "¿qué?",
        "№ 5",
        "½",
        "≥ 5",
        "µg/l",
        "naïve café",
        "Ångström",
    ]
    assert encoding_warning(pl.Series("x", signs)) is None


def test_files_of_two_encodings_that_were_joined_are_said_by_line(tmp_path):
    raw = "id,name\n1,Köln\n2,Müller\n".encode() + "3,Jürgen\n".encode("cp1252")
    (tmp_path / "t.csv").write_bytes(raw)
    with pytest.raises(DataError, match="is not text in utf-8 from line 4 on, but other lines are, as if files of two encodings"):
        read_table(TableConfig(path=tmp_path / "t.csv"))
