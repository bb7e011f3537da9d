"""Names of the languages that Whisper writes, by which a configuration may call them in place of their codes.

Source: openai-whisper, tokenizer.py (LANGUAGES, TO_LANGUAGE_CODE).
"""

from __future__ import annotations

_NAMES = """
en english; zh chinese, mandarin; de german; es spanish, castilian; ru russian; ko korean; fr french; ja japanese; pt
portuguese; tr turkish; pl polish; ca catalan, valencian; nl dutch, flemish; ar arabic; sv swedish; it italian; id
indonesian; hi hindi; fi finnish; vi vietnamese; he hebrew; uk ukrainian; el greek; ms malay; cs czech; ro romanian,
moldavian, moldovan; da danish; hu hungarian; ta tamil; no norwegian; th thai; ur urdu; hr croatian; bg bulgarian; lt
lithuanian; la latin; mi maori; ml malayalam; cy welsh; sk slovak; te telugu; fa persian; lv latvian; bn bengali; sr
serbian; az azerbaijani; sl slovenian; kn kannada; et estonian; mk macedonian; br breton; eu basque; is icelandic; hy
armenian; ne nepali; mn mongolian; bs bosnian; kk kazakh; sq albanian; sw swahili; gl galician; mr marathi; pa
punjabi, panjabi; si sinhala, sinhalese; km khmer; sn shona; yo yoruba; so somali; af afrikaans; oc occitan; ka
georgian; be belarusian; tg tajik; sd sindhi; gu gujarati; am amharic; yi yiddish; lo lao; uz uzbek; fo faroese; ht
haitian creole, haitian; ps pashto, pushto; tk turkmen; nn nynorsk; mt maltese; sa sanskrit; lb luxembourgish,
letzeburgesch; my myanmar, burmese; bo tibetan; tl tagalog; mg malagasy; as assamese; tt tatar; haw hawaiian; ln
lingala; ha hausa; ba bashkir; jw javanese; su sundanese; yue cantonese
"""
_CODES = {
    name: short
    for short, _, names in (part.strip().partition(" ") for part in " ".join(_NAMES.split()).split(";"))
    for name in names.split(", ")
}


def code(language: str) -> str:
    """The code of a language: "ja" for "Japanese", "<|ja|>" and "ja"; an unknown name as it is, in lower case."""
    bare = language.strip().lower().removeprefix("<|").removesuffix("|>")
    return _CODES.get(bare, bare)


__all__ = ["code"]
