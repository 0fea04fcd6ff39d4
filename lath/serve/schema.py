"""The requests and answers of the API, as FastAPI describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

Texts = str | list[str]
Verify = Literal["", "rerank", "relaxed", "exact"]
Language = Annotated[str, Field(min_length=1, max_length=20)]


class TranslateRequest(BaseModel):
    """Texts to translate, as LibreTranslate takes them; `iterations`, `verify` and `trace` are lath's own."""

    q: Texts = Field(description="a text, or a list of texts")
    source: Language = Field(description="code of the language to translate from, or auto")
    target: Language = Field(description="code of the language to translate into")
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(0, ge=0, le=3, description="other translations to give, as far as there are any")
    api_key: str = ""
    iterations: int | None = Field(None, ge=1, le=16, description="passes of the decoder")
    verify: Verify | None = Field(
        None, description="how a verifier checks the translation, where there is one; empty for no checks"
    )
    trace: bool = Field(False, description="give every pass of the decoder (texts only)")


class DetectRequest(BaseModel):
    """Texts whose language is asked for."""

    q: Texts
    api_key: str = ""


class FileRequest(BaseModel):
    """The fields beside a file."""

    source: Language
    target: Language
    api_key: str = ""


class DeepLRequest(BaseModel):
    """Texts to translate, as DeepL takes them."""

    text: Texts
    target_lang: Language
    source_lang: Language = "auto"
    tag_handling: Literal["html"] | None = None
    auth_key: str = ""


class Detected(BaseModel):
    """A language, and how sure that is in percent."""

    language: str
    confidence: float


class Trace(BaseModel):
    """lath's own part of an answer."""

    ms: dict[str, float] = Field(description="milliseconds of each step")
    hypotheses: list[dict[str, Any]] = Field(description="for each text: text, score, doubtful, copied, checks, passes")


class TranslateAnswer(BaseModel):
    """Translations; lists where `q` was one. `lath` is there if `iterations`, `verify` or `trace` was."""

    translatedText: Texts
    detectedLanguage: Detected | list[Detected] | None = None
    alternatives: list[str] | list[list[str]] | None = None
    lath: Trace | None = None


class FileAnswer(BaseModel):
    """The translated file, within its address: `data:text/plain;charset=utf-8;base64,...`. Nothing is stored."""

    translatedFileUrl: str


class DeepLTranslation(BaseModel):
    """One translation."""

    detected_source_language: str
    text: str


class DeepLAnswer(BaseModel):
    """Translations in the order of the texts."""

    translations: list[DeepLTranslation]


class KnownLanguage(BaseModel):
    """A language, and what it can be translated into."""

    code: str
    name: str
    targets: list[str]


class Error(BaseModel):
    """What went wrong, and what to do."""

    error: str
