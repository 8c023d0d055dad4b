"""Records again what Powertools for AWS Lambda (Python) makes of the events in data/: ids, validation hashes and what was hashed.

    $(tools/python-tools) tests/keys/record_python.py data/more_python.json ...

Changes the vectors of Python in the files given, and leaves those of other languages as they are. The library runs
as it is, with a store that only remembers what it is asked to write.
"""
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import warnings

from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer

SOURCE = "ran aws-lambda-powertools {} on CPython {}, jmespath {}".format(
    importlib.metadata.version("aws-lambda-powertools"), platform.python_version(), importlib.metadata.version("jmespath")
)


class Noted(BasePersistenceLayer):
    def __init__(self):
        super().__init__()
        self.texts, self.written = [], None

    def _generate_hash(self, data):
        plain, hashed = self.hash_function, []
        self.hash_function = lambda text: hashed.append(text.decode()) or plain(text)
        try:
            return super()._generate_hash(data)
        finally:
            self.hash_function = plain
            self.texts += hashed

    def _put_record(self, data_record):
        self.written = data_record

    def _get_record(self, idempotency_key):
        raise NotImplementedError

    def _update_record(self, data_record):
        pass

    def _delete_record(self, data_record):
        pass


def text(vector, name):
    if name + "_hex" in vector:
        return bytes.fromhex(vector[name + "_hex"]).decode("utf-8", "surrogatepass")
    return vector.get(name)


def run(vector):
    """(record or None, what was hashed, error or None)"""
    function, _, rest = vector["function_name"].partition(".")
    module, _, name = rest.partition(".")
    os.environ["AWS_LAMBDA_FUNCTION_NAME"] = function
    config = IdempotencyConfig(
        event_key_jmespath=text(vector, "event_key_jmespath") or "",
        payload_validation_jmespath=text(vector, "payload_validation_jmespath") or "",
        hash_function=vector["hash_function"] or "md5",
        raise_on_no_idempotency_key=vector["throw_on_no_key"],
    )
    prefix = {"key_prefix": vector["key_prefix"]} if vector.get("key_prefix") else {}
    store = Noted()

    def handler(event, context):
        return None

    handler.__module__, handler.__qualname__ = module, name
    try:
        idempotent(handler, persistence_store=store, config=config, **prefix)(json.loads(text(vector, "event_text")), None)
    except Exception as error:  # What it raises is the record.
        return None, [], f"{type(error).__name__}: {error}"
    return store.written, store.texts, None


def record(vector):
    written, texts, error = run(vector)
    kept = {name: value for name, value in vector.items() if name not in ("error", "note", "function_called")}
    kept |= {
        "id": written.idempotency_key if written else None,
        "validation_hash": written.payload_hash if written else None,
        "hashed_text": texts[0] if written else None,
        "validation_hashed_text": texts[1] if written and written.payload_hash else None,
        "source": SOURCE,
    }
    if error:
        kept["error"] = error.splitlines()[0]
    elif not written:
        kept["note"] = "skipped"
    return kept


def main():
    warnings.simplefilter("ignore")
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            whole = file.read()
        vectors = json.loads(whole)
        indent = len(whole.splitlines()[1]) - len(whole.splitlines()[1].lstrip())
        vectors = [record(one) if one["lang"] == "python" else one for one in vectors]
        with open(path, "w", encoding="utf-8") as file:
            json.dump(vectors, file, indent=indent, ensure_ascii=not any(ord(c) > 126 for c in whole))
            file.write("\n" if whole.endswith("\n") else "")


main()
