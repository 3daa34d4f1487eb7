"""Generated requests: no answer is a 500, and none is what /openapi.json does not say."""

import asyncio
import os
import sys
from pathlib import Path

# A 500 is documented nowhere, so `status_code_conformance` finds it; the documented 502 to 504 are
# right answers where a generated request is late (`not_a_server_error` would refuse them too).
CHECKS = "status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance"


async def check_answers(folder: Path, url: str, token: str, *options: str) -> None:
    """Send the same requests each time, how many ever it takes; their number is no matter of speed."""
    report = folder / "report.ndjson"
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        f"{url}/openapi.json",
        f"--header=Authorization: Bearer {token}",
        f"--checks={CHECKS}",
        "--phases=examples,coverage,fuzzing",
        "--max-examples=10",
        "--mode=all",
        "--seed=1",
        "--workers=1",
        "--request-timeout=90",
        "--no-color",
        f"--report-ndjson-path={report}",
        *options,
        cwd=folder,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()[-12000:]
    assert '"status_code":500' not in report.read_text().replace(" ", "")
