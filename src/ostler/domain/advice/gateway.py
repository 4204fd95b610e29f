"""What the gateway answers with in OpenAI's shape, by the `code` of the error."""

from ostler.domain.advice.entry import GATEWAY, Advice

REFUSALS = (
    Advice(
        "gateway-invalid-api-key",
        GATEWAY,
        "invalid_api_key",
        "The gateway was called without a key, or with one that it does not know, that was revoked or has expired.",
        "Give one of `api_keys`, or a token of role `user`, `operator` or `gateway`, as `Authorization: Bearer "
        "…`; OpenAI's clients call it `api_key`.",
    ),
    Advice(
        "gateway-permission-denied",
        GATEWAY,
        "permission_denied",
        "The key is good for something else: a viewer's or a worker's token calls no models, and a page of "
        "another origin may not either.",
        "Make a token that may: `ostler token create --role gateway --user NAME`. For a page, add its origin to "
        "`cors_origins` under `[gateway]`.",
    ),
    Advice(
        "gateway-model-not-found",
        GATEWAY,
        "model_not_found",
        "No model of that name is configured, or it was taken out.",
        "`GET /v1/models` and `ostler models` list those that there are, with their aliases.",
    ),
    Advice(
        "gateway-not-found",
        GATEWAY,
        "not_found",
        "There is nothing at this path, or nobody waits for this tunnel.",
        "Models are called below `/v1/`; a path of a model's own server needs `?model=NAME`.",
    ),
    Advice(
        "gateway-queue-full",
        GATEWAY,
        "queue_full",
        "As many requests wait for this model as its `queue_limit` lets.",
        "Ask again after `Retry-After`; raise `queue_limit`, `concurrency` or `max_instances` if this is usual.",
    ),
    Advice(
        "gateway-request-limit-reached",
        GATEWAY,
        "request_limit_reached",
        "As many requests are served by this model or wait for it as its `request_limit` lets.",
        "Ask again after `Retry-After`; raise `request_limit` if this is usual.",
    ),
    Advice(
        "gateway-too-many-requests",
        GATEWAY,
        "too_many_requests",
        "This key has as many requests in flight as it may have.",
        "Wait for one of them; an operator sets `in_flight` of the key in `api_keys`.",
    ),
    Advice(
        "gateway-model-load-failed",
        GATEWAY,
        "model_load_failed",
        "The model's server could not be started, ended before it answered, or did not become ready in time.",
        "`ostler models logs NAME` has what it said. After some failures the next tries are spaced out; `ostler "
        "models load NAME` tries at once.",
    ),
    Advice(
        "gateway-no-machine",
        GATEWAY,
        "no_machine",
        "No machine that takes work could hold the model, even with nothing else on it.",
        "`ostler workers` says what each machine offers and whether it is online; start one that is large enough, "
        "resume one that is drained, or correct `vram`, `memory`, `gpus` or `labels` of the model.",
    ),
    Advice(
        "gateway-unloaded",
        GATEWAY,
        "unloaded",
        "The model was unloaded while this request waited or was served.",
        "Ask again: it is loaded anew. A pinned model (`ostler models pin NAME`) makes way for nobody.",
    ),
    Advice(
        "gateway-upstream-error",
        GATEWAY,
        "upstream_error",
        "The model's own server answered with an error, broke off, or did not stream what was to be streamed.",
        "`ostler models logs NAME` says why. A stream that has begun ends with this as its last event.",
    ),
    Advice(
        "gateway-peer-unreachable",
        GATEWAY,
        "peer_unreachable",
        "Another OpenAI-compatible server, named under `[gateway.peers]`, did not answer.",
        "Look at that server, and at the `url` of the peer.",
    ),
    Advice(
        "gateway-no-room",
        GATEWAY,
        "no_room",
        "The body of the request could not be kept while its model loads: the disk of the gateway's spool is full.",
        "Make room on the hub's disk, then ask again.",
    ),
    Advice(
        "gateway-aborted",
        GATEWAY,
        "aborted",
        "The gateway ended the request, because its configuration or its hub changed under it.",
        "Ask again.",
    ),
    Advice(
        "gateway-shutting-down",
        GATEWAY,
        "shutting_down",
        "The gateway is being stopped.",
        "Ask again after `Retry-After`.",
    ),
    Advice(
        "gateway-timeout",
        GATEWAY,
        "timeout",
        "The request did not arrive in time.",
        "Send it again; a slow line has 20 s for the head of a request.",
    ),
    Advice(
        "gateway-bad-request",
        GATEWAY,
        "bad_request",
        "The request cannot be understood: its head, its JSON, or the field that `param` names.",
        "Correct what the message names.",
    ),
    Advice(
        "gateway-request-too-large",
        GATEWAY,
        "request_too_large",
        "The body is larger than `max_body`.",
        "Send less, or let an operator raise `max_body` under `[gateway]`.",
    ),
    Advice(
        "gateway-head-too-large",
        GATEWAY,
        "head_too_large",
        "The head of the request is larger than is taken.",
        "Send fewer or shorter headers.",
    ),
    Advice(
        "gateway-method-not-allowed",
        GATEWAY,
        "method_not_allowed",
        "The path is there, but not for this method.",
        "Models are listed by `GET` and called by `POST`.",
    ),
    Advice(
        "gateway-unsupported-version",
        GATEWAY,
        "unsupported_version",
        "The caller speaks another version of HTTP.",
        "Speak HTTP/1.1.",
    ),
    Advice(
        "gateway-unsupported-encoding",
        GATEWAY,
        "unsupported_encoding",
        "The body came in a transfer encoding that is not known.",
        "Send it plain or chunked.",
    ),
    Advice(
        "gateway-expectation-failed",
        GATEWAY,
        "expectation_failed",
        "The caller expects something else than `100-continue`.",
        "Leave the `Expect` header out.",
    ),
    Advice(
        "gateway-upgrade-required",
        GATEWAY,
        "upgrade_required",
        "A tunnel was asked for without the upgrade that opens one.",
        "This path is for workers of the same version as the hub.",
    ),
)
