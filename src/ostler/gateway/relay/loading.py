"""What a caller who streams receives while its model loads: comments, which programs skip, or text that chats show."""

import asyncio
from typing import TYPE_CHECKING

from ostler.gateway.relay.answers import CLOSE, STREAM_HEAD, chunk, comment, reasoning

if TYPE_CHECKING:
    from ostler.gateway.relay.exchange import Exchange
    from ostler.gateway.relay.limits import Limits


class Loading:
    def __init__(self, exchange: "Exchange", limits: "Limits", *, as_text: bool) -> None:
        self.begun = False
        """The status has been sent: from now on an error is an event."""
        self._exchange = exchange
        self._every_s = limits.loading_every_s
        self._as_text = as_text
        self._text = ""
        self._shown = ""
        """The text that the caller has read last. Between two texts comments keep the connection open."""
        self._after_s = limits.loading_after_s
        self._loop = asyncio.get_running_loop()
        self.resume()

    def resume(self) -> None:
        """It waits, or waits again."""
        self._timer = self._loop.call_later(self._after_s, self._speak)

    def tell(self, text: str) -> None:
        """The next comment says this. What is new is said at once, but no news is said twice."""
        if text != self._text:
            self._text = text
            if self.begun:
                self._timer.cancel()
                self._speak()

    def _speak(self) -> None:
        caller = self._exchange.caller
        if caller is None:
            return
        if not self.begun:
            self.begun = True
            request = self._exchange.request
            caller.write(STREAM_HEAD % (request.answer_lines, b"" if request.persistent else CLOSE))
        if not caller.full:
            caller.write(chunk(self._news()))
        self._timer = self._loop.call_later(self._every_s, self._speak)

    def _news(self) -> bytes:
        exchange = self._exchange
        text = self._text or f"waiting for {exchange.model.name!r}"
        if not self._as_text or text == self._shown:
            return comment(f"loading {self._text}")
        self._shown = text
        return reasoning(exchange.request.id.decode(), exchange.model.name, f"{text} …\n")

    def pause(self) -> None:
        """It waits no more."""
        self._timer.cancel()
