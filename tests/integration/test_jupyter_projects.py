"""A Jupyter client that keeps one kernel per project and its files in ``~/workspace/{project}`` (Cloosphere).

It uploads below ``workspace/{project}`` of the contents, and its code goes there from the home folder. Before
each piece of code it looks whether the kernel lives, and sends that preparation anew.
"""

import base64
import json
import uuid

import httpx
from service_process import ServiceProcess
from websockets.sync.client import connect

PREPARE = """
import os
folder = os.path.join(os.path.expanduser("~"), "workspace", {project!r})
os.makedirs(folder, exist_ok=True)
os.chdir(folder)
assert os.path.realpath("data.csv").startswith(folder), "reading outside of the project"
"""


class Project:
    """A project as its client sees it."""

    def __init__(self, service: ServiceProcess, name: str) -> None:
        self.name = name
        self.kernel_id = ""
        self._socket_url = service.url.replace("http", "ws", 1)
        self._params = {"token": service.token}
        self._http = httpx.Client(base_url=service.url, params=self._params, timeout=60)

    def run(self, code: str) -> str:
        """What code prints on stdout, in the project's kernel."""
        known = self.kernel_id and self._http.get(f"/api/kernels/{self.kernel_id}").is_success
        if not known:
            self.kernel_id = self._http.post("/api/kernels").raise_for_status().json()["id"]
        self._execute(PREPARE.format(project=self.name))
        return self._execute(code)

    def upload(self, name: str, data: bytes) -> None:
        for folder in ("workspace", f"workspace/{self.name}"):
            self._http.put(f"/api/contents/{folder}", json={"type": "directory"})
        model = {"type": "file", "format": "base64", "content": base64.b64encode(data).decode()}
        self._http.put(f"/api/contents/workspace/{self.name}/{name}", json=model).raise_for_status()

    def files(self) -> list[str]:
        listed = self._http.get(f"/api/contents/workspace/{self.name}").raise_for_status().json()
        return [entry["name"] for entry in listed["content"]]

    def download(self, name: str) -> str:
        found = self._http.get(f"/api/contents/workspace/{self.name}/{name}").raise_for_status()
        content: str = found.json()["content"]
        return content

    def restart(self) -> None:
        self._http.post(f"/api/kernels/{self.kernel_id}/restart").raise_for_status()

    def end(self) -> None:
        if self.kernel_id:
            self._http.delete(f"/api/kernels/{self.kernel_id}").raise_for_status()
        self._http.close()

    def _execute(self, code: str) -> str:
        msg_id = uuid.uuid4().hex
        header = {"msg_id": msg_id, "msg_type": "execute_request", "session": "s", "version": "5.3"}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": {"code": code}}
        url = f"{self._socket_url}/api/kernels/{self.kernel_id}/channels?token={self._params['token']}"
        printed = ""
        with connect(url) as socket:
            socket.send(json.dumps({**message, "channel": "shell"}))
            while True:
                answer = json.loads(socket.recv(timeout=60))
                if answer["parent_header"].get("msg_id") != msg_id:
                    continue
                content = answer["content"]
                assert answer["msg_type"] != "error", content
                if answer["msg_type"] == "stream" and content["name"] == "stdout":
                    printed += content["text"]
                if content.get("execution_state") == "idle":
                    return printed


def test_files_of_projects_are_where_their_code_looks(service: ServiceProcess, api: httpx.Client) -> None:
    sales, costs = Project(service, "sales"), Project(service, "costs")
    try:
        for project in (sales, costs):
            project.run("table = 1")
            project.upload("data.csv", project.name.encode())
        assert sales.run("print(open('data.csv').read())") == "sales\n"
        sales.run("open('report.txt', 'w').write('done')")
        assert (sales.files(), costs.files()) == (["data.csv", "report.txt"], ["data.csv"])
        assert sales.download("report.txt") == "done"
        assert (
            api.get(f"/v1/sessions/{_session_of(api, sales)}/files/workspace/sales/report.txt").text == "done"
        )
        sales.restart()
        assert sales.run("print(sorted(os.listdir()), 'table' in globals())").startswith(
            "['.keep', 'data.csv', 'report.txt'] False"
        )
        assert costs.run("print(table, open('data.csv').read())") == "1 costs\n"
    finally:
        sales.end()
        costs.end()


def _session_of(api: httpx.Client, project: Project) -> str:
    """The id of the session in which the project's code ran."""
    for session in api.get("/v1/sessions").raise_for_status().json()["data"]:
        found = api.get(f"/v1/sessions/{session['id']}/files").json()["data"]
        if any(file["path"].startswith(f"workspace/{project.name}/") for file in found):
            session_id: str = session["id"]
            return session_id
    raise AssertionError("no session has the project's files")
