"""A model behind the gateway: the fourth kind of work. A waiting job takes the memory of the model when it is idle."""

from examples.demo.board import Row
from examples.demo.expectations import Expectation
from examples.demo.progress import Document, Progress

NAME = "mare"
WORKER = "mac"
QUESTION = {"role": "user", "content": "The black"}
ANSWER = "colt needs room"
"""The most likely three words after the question, from the text that the model has read."""
JOB = "finetune"


class Model:
    """Calls the model, and then submits a job that needs the memory which the idle model holds."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._answer: Document = {}
        self._called: Document = {}
        self._meanwhile: Document = {}
        self._process_id = ""
        self._job_id = ""

    def call(self) -> None:
        """The first call loads the model, so its answer takes as long as the load."""
        url = f"{self._progress.fleet.gateway_url}/chat/completions"
        body = {"model": NAME, "temperature": 0, "max_tokens": 3, "messages": [QUESTION]}
        self._progress.say(f"calling the model '{NAME}' through the gateway, which loads it")
        self._answer = self._progress.fetch_behind_board(url, body, f"an answer of the model '{NAME}'")
        self._called = self._state()
        self._process_id = self._called["job_id"] or ""
        text = read_text_of(self._answer) or self._answer
        self._progress.say(f"the model on {self._called['worker']} answered: {QUESTION['content']} {text}")
        self._progress.let_people_look()

    def submit_job(self) -> None:
        needs = ["--vram", "24g", "--backend", "metal"]
        command = self._progress.fleet.make_gated_command("finetune", JOB)
        self._progress.say(f"the model is idle and holds 40 of the Mac's 48 GiB; submitting '{JOB}', which needs 24")
        self._job_id = self._progress.run_command("submit", "--name", JOB, *needs, "--", *command).strip()

    def watch_eviction(self) -> None:
        """Holds the job at its gate while the model's state is read."""
        self._progress.wait_until_running([self._job_id], f"'{JOB}' to run in the memory of the idle model")
        self._meanwhile = self._state()
        self._progress.say(f"the hub stopped the idle model; '{JOB}' runs in its memory")
        self._progress.let_people_look()
        self._progress.fleet.open_gate("finetune")
        self._progress.wait_until(lambda: self._progress.have_ended([self._job_id]), f"'{JOB}' to end")

    def compare(self) -> list[Row]:
        text = read_text_of(self._answer)
        job = self._progress.job(self._job_id)
        is_right = text == ANSWER and self._called["worker"] == WORKER
        answered = "" if is_right else f"should be '{ANSWER}' on {WORKER}" if text else f"the answer: {self._answer}"
        return [
            Row(NAME, f"on {WORKER}, answers '{ANSWER}'", f"'{text}' on {self._called['worker']}", answered),
            Expectation(self._job_id, "24 GiB of the GPU that the model holds", workers=(WORKER,)).compare(job),
            self._compare_eviction(job),
        ]

    def _compare_eviction(self, job: Document) -> Row:
        """The model's process ended for the job, and before the job began."""
        state = self._meanwhile["state"]
        if not self._process_id:
            return Row(NAME, "idle: stops for that job", state, "the gateway named no process of the model")
        process = self._progress.job(self._process_id)
        yielded = process["reason"] == "yielded" and process["finished_at"] <= (job["started_at"] or "")
        problem = "" if yielded and state == "stopped" else f"its process: {process['state']}, {process['reason']}"
        return Row(NAME, "idle: stops for that job, before it begins", f"{state} while '{JOB}' ran", problem)

    def _state(self) -> Document:
        return next(one for one in self._progress.hub.hub.models() if one["name"] == NAME)


def read_text_of(answer: Document) -> str:
    """The text of an OpenAI chat completion, or nothing if the answer is another."""
    try:
        text: str = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError):
        return ""
    return text
