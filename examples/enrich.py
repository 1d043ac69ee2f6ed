"""A worker in ten lines: dfq work ./jobs --stream -j 4 -- python3 examples/enrich.py"""
import json, sys

for line in sys.stdin:  # one task on each line: id, attempt, fence, receipt, queue, task
    job = json.loads(line)
    try:
        if job["id"] == "bad":
            raise ValueError("nothing can be done about this one")
        answer = {"ok": True}
    except ValueError as error:  # hopeless; for what may pass: {"retry": "why", "delay": "5m"}
        answer = {"fail": str(error)}
    print(json.dumps(answer | {"id": job["id"]}), flush=True)
