"""The languages of speech (Radford et al. 2022): their codes, in the order of their tokens, and their names."""

from __future__ import annotations

from transept.errors import InputError, nearest

_TABLE = """
en english, zh chinese, de german, es spanish, ru russian, ko korean, fr french, ja japanese, pt portuguese,
tr turkish, pl polish, ca catalan, nl dutch, ar arabic, sv swedish, it italian, id indonesian, hi hindi, fi finnish,
vi vietnamese, he hebrew, uk ukrainian, el greek, ms malay, cs czech, ro romanian, da danish, hu hungarian, ta tamil,
no norwegian, th thai, ur urdu, hr croatian, bg bulgarian, lt lithuanian, la latin, mi maori, ml malayalam, cy welsh,
sk slovak, te telugu, fa persian, lv latvian, bn bengali, sr serbian, az azerbaijani, sl slovenian, kn kannada,
et estonian, mk macedonian, br breton, eu basque, is icelandic, hy armenian, ne nepali, mn mongolian, bs bosnian,
kk kazakh, sq albanian, sw swahili, gl galician, mr marathi, pa punjabi, si sinhala, km khmer, sn shona, yo yoruba,
so somali, af afrikaans, oc occitan, ka georgian, be belarusian, tg tajik, sd sindhi, gu gujarati, am amharic,
yi yiddish, lo lao, uz uzbek, fo faroese, ht haitian creole, ps pashto, tk turkmen, nn nynorsk, mt maltese,
sa sanskrit, lb luxembourgish, my myanmar, bo tibetan, tl tagalog, mg malagasy, as assamese, tt tatar, haw hawaiian,
ln lingala, ha hausa, ba bashkir, jw javanese, su sundanese, yue cantonese
"""
LANGUAGES: dict[str, str] = dict(entry.strip().split(" ", 1) for entry in _TABLE.split(","))
"""Code -> name."""
_ALIASES = {"burmese": "my", "valencian": "ca", "flemish": "nl", "haitian": "ht", "letzeburgesch": "lb", "pushto": "ps"}
_ALIASES |= {"panjabi": "pa", "moldavian": "ro", "moldovan": "ro", "sinhalese": "si", "castilian": "es", "mandarin": "zh"}
CODES = {name: code for code, name in LANGUAGES.items()} | _ALIASES
"""Name -> code, with other names of some."""
TASKS = ("translate", "transcribe")


def language_code(language: str) -> str:
    """The code of a language, from its name, its code or its token (``<|fr|>``); ``InputError`` where there is no such one."""
    name = str(language).lower().removeprefix("<|").removesuffix("|>")
    if (code := CODES.get(name, name)) not in LANGUAGES:
        hint = nearest(name, [*LANGUAGES, *CODES])
        raise InputError(f"the language {str(language)[:60]!r} is not known.", hint=hint)
    return code


def check_task(task: str) -> str:
    """``task`` itself; ``InputError`` where it is none."""
    if task not in TASKS:
        raise InputError(f"the task {str(task)[:60]!r} is not known.", hint="Pass 'transcribe' or 'translate'.")
    return task
