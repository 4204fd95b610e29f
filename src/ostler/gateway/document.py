"""A model's part of `GET /v1/models`, as clients of llama.cpp, OpenRouter and llama-swap look for it."""

from typing import Any

CAPABILITIES = "capabilities"
"""The key in a model's metadata: { in = ["text", "image"], out = ["text"], tools = true, context = 8192 }."""
_BY_MODALITIES = {
    "audio_transcriptions": ("audio", "text"),
    "audio_speech": ("text", "audio"),
    "image_generation": ("text", "image"),
    "image_to_image": ("image", "image"),
}


def document(title: str, description: str, metadata: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if title:
        found["name"] = title
    if description:
        found["description"] = description
    told = metadata.get(CAPABILITIES)
    if not isinstance(told, dict):
        return found | ({"meta": metadata} if metadata else {})
    meta = {name: value for name, value in metadata.items() if name != CAPABILITIES}
    if context := told.get("context"):
        found["context_length"] = context
        meta["n_ctx"] = context
    return found | _capabilities(told) | ({"meta": meta} if meta else {})


def _capabilities(told: dict[str, Any]) -> dict[str, Any]:
    takes, gives = list(told.get("in") or []), list(told.get("out") or [])
    able = {"vision": "image" in takes}
    able |= {name: one in takes and other in gives for name, (one, other) in _BY_MODALITIES.items()}
    able |= {"function_calling": bool(told.get("tools")), "reranker": bool(told.get("reranker"))}
    found: dict[str, Any] = {}
    if any(able.values()):
        found["capabilities"] = {name: True for name, is_able in able.items() if is_able}
    if takes or gives:
        found["architecture"] = {"input_modalities": takes, "output_modalities": gives}
    if takes and gives:
        found["architecture"]["modality"] = f"{'+'.join(takes)}->{'+'.join(gives)}"
    if told.get("tools"):
        found["supported_parameters"] = ["tools", "tool_choice"]
    return found
